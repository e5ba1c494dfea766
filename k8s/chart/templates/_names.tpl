{{- define "cutline.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- /* The services: the key of each in the values, and the name of its Deployment. */}}
{{- define "cutline.services" -}}
enumerator: enumerator
reader: reader
writer: writer
sparkWriter: spark-writer
control: control
{{- end }}

{{- define "cutline.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "cutline.labels" -}}
{{ include "cutline.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: cutline
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The metadata of an object: dict "root" $, "component", "annotations", and "name" or "suffix". */}}
{{- define "cutline.metadata" -}}
name: {{ .name | default (printf "%s-%s" (include "cutline.fullname" .root) .suffix) }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "cutline.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cutline.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "cutline.account" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "cutline.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "cutline.sparkAccount" -}}
{{- if .Values.sparkWriter.serviceAccount.create -}}
{{ .Values.sparkWriter.serviceAccount.name | default (printf "%s-spark-writer" (include "cutline.fullname" .)) }}
{{- else -}}
{{ .Values.sparkWriter.serviceAccount.name | default (include "cutline.account" .) }}
{{- end -}}
{{- end }}

{{- /* A service's values over those of `defaults`: maps are merged, and a key of the service wins. */}}
{{- define "cutline.service" -}}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.defaults) (deepCopy (index .root.Values .key))) -}}
{{- end }}

{{- /* The members that an epoch waits for: of a service that is scaled automatically the fewest that it has. */}}
{{- define "cutline.members" -}}
{{- ternary .autoscaling.minReplicas .replicas .autoscaling.enabled -}}
{{- end }}

{{- define "cutline.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
