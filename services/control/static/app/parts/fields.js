// Form fields: label, hint, and the API's own error at the field.
import { html, useId } from "../html.js";
import { Icon } from "../icons.js";
import { sentence } from "./basics.js";

/** `error`: a text or {detail, remedy}. `control` gets the attributes that tie it to label, hint and error. */
function Field({ label, hint, error, control, optional }) {
  const id = useId();
  const notes = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  const detail = error?.detail ?? error;
  return html`
    <div class="field">
      <label for=${id}>${label}${optional && html` <span class="quiet small">optional</span>`}</label>
      ${control({ id, "aria-describedby": notes, "aria-invalid": error ? "true" : undefined })}
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
      ${error && html`<p class="error" id=${`${id}-error`}><${Icon} name="warning" /><span>${sentence(detail)}${error.remedy && ` ${sentence(error.remedy)}`}</span></p>`}
    </div>`;
}

export const TextField = ({ label, hint, error, optional, value, onInput, ...rest }) =>
  html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional} control=${(tied) => html`<input type="text" autocomplete="off" spellcheck=${false} value=${value ?? ""} onInput=${(event) => onInput(event.target.value)} ...${rest} ...${tied} />`} />`;

export const NumberField = ({ value, onInput, ...rest }) =>
  html`<${TextField} ...${rest} type="number" value=${value ?? ""} onInput=${(text) => onInput(text === "" ? null : Number(text))} />`;

export const AreaField = ({ label, hint, error, optional, value, onInput, ...rest }) =>
  html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional} control=${(tied) => html`<textarea class="mono" spellcheck=${false} value=${value ?? ""} onInput=${(event) => onInput(event.target.value)} ...${rest} ...${tied}></textarea>`} />`;

/** `options`: [value, text]. */
export const SelectField = ({ label, hint, error, optional, value, options, onInput, ...rest }) =>
  html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional} control=${(tied) => html`
    <select value=${value ?? ""} onChange=${(event) => onInput(event.target.value)} ...${rest} ...${tied}>
      ${options.map(([id, text]) => html`<option key=${id} value=${id} selected=${id === (value ?? "")}>${text}</option>`)}
    </select>`} />`;

export const CheckField = ({ label, hint, checked, disabled, onInput }) => {
  const id = useId();
  return html`
    <div class="check"><input type="checkbox" id=${id} checked=${checked} disabled=${disabled} aria-describedby=${hint ? `${id}-hint` : undefined} onChange=${(event) => onInput(event.target.checked)} />
      <div><label for=${id}>${label}</label>${hint && html`<p class="small quiet" id=${`${id}-hint`}>${hint}</p>`}</div></div>`;
};

/** The errors of a Problem by field: "source.port" -> {detail, remedy}. */
export function byField(problem) {
  const found = {};
  for (const error of problem?.errors ?? []) found[error.field ?? ""] ??= error;
  return found;
}
