{{- /* The environment of a pod of Cutline. `source`: with the passwords of sources; `redis`: with the mesh's Redis; "more":
       further variables, as text. */}}
{{- define "cutline.environment" -}}
envFrom:
  - configMapRef: {name: {{ include "cutline.fullname" .root }}-settings}
  {{- range .root.Values.store.secrets }}
  - secretRef: {name: {{ . }}}
  {{- end }}
  {{- if .source }}
  {{- range .root.Values.source.secrets }}
  - secretRef: {name: {{ . }}}
  {{- end }}
  {{- end }}
  {{- with .extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $redis := ternary (include "cutline.redisUrl" .root) "" (.redis | default false) }}
{{- with concat ($redis | fromYamlArray) (.more | default "[]" | fromYamlArray) (.extraEnv | default list) }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cutline.redisUrl" -}}
{{- if .Values.redis.bundled }}
{{- $host := printf "%s-redis:6379/0" (include "cutline.fullname" .) }}
{{- with .Values.redis.password.existingSecret }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.redis.password.key }}}}
- {name: CUTLINE_REDIS_URL, value: "redis://:$(REDIS_PASSWORD)@{{ $host }}"}
{{- else }}
- {name: CUTLINE_REDIS_URL, value: "redis://{{ $host }}"}
{{- end }}
{{- else if .Values.redis.existingSecret.name }}
- name: CUTLINE_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.existingSecret.name }}, key: {{ .Values.redis.existingSecret.key }}}}
{{- else }}
- {name: CUTLINE_REDIS_URL, value: {{ required "redis.bundled is false: set redis.url or redis.existingSecret.name" .Values.redis.url | quote }}}
{{- end }}
{{- end }}

{{- /* What all pods of Cutline have in their spec, Jobs too. */}}
{{- define "cutline.pod" -}}
serviceAccountName: {{ .account | default (include "cutline.account" .root) }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
{{- with include "cutline.pullSecrets" .root | trim }}
{{ . }}
{{- end }}
securityContext:
  {{- toYaml .service.podSecurityContext | nindent 2 }}
{{- with .service.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .service.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .service.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .service.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cutline.spread" -}}
{{- $constraints := list }}
{{- $selector := dict "matchLabels" (include "cutline.selector" . | fromYaml) }}
{{- range .service.topologySpreadConstraints }}
{{- $constraints = append $constraints (merge (deepCopy .) (dict "labelSelector" $selector)) }}
{{- end }}
{{- with $constraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cutline.container" -}}
image: {{ include "cutline.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
workingDir: /tmp
securityContext:
  {{- toYaml .service.securityContext | nindent 2 }}
resources:
  {{- toYaml .service.resources | nindent 2 }}
{{- end }}
