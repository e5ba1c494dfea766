// Asking for an operation: a dialog that says what will happen, then the command's way to its end.
import { act, get, newKey, Problem } from "../api.js";
import { label } from "../format.js";
import { html, useCallback, useRef, useState } from "../html.js";
import { Icon } from "../icons.js";
import { OPERATIONS, reasonAgainst } from "../operations.js";
import { Button, Failure, Notice, sentence } from "./basics.js";
import { Dialog, toast } from "./dialog.js";
import { byField, CheckField, TextField } from "./fields.js";
import { SourceTicks } from "./sourceticks.js";

/** Returns [ask(id, context), the dialog that is open or null]. `done`: called when a command has ended. */
export function useOperations(me, done) {
  const [asked, setAsked] = useState(null);
  const ask = useCallback((id, context) => setAsked({ id, context, number: Date.now() }), []);
  const dialog =
    asked &&
    html`<${Confirmation} key=${asked.number} id=${asked.id} context=${asked.context} me=${me} done=${done} onClose=${() => setAsked(null)} />`;
  return [ask, dialog];
}

function Confirmation({ id, context, me, done, onClose }) {
  const operation = OPERATIONS[id];
  const fields = operation.fields ?? [];
  const [values, setValues] = useState(() =>
    Object.fromEntries(
      fields.map((field) => [field.name, field.initial?.(context) ?? (field.type === "check" ? false : "")]),
    ),
  );
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const reason = reasonAgainst(operation, context, me);
  const missing = fields.find(
    (field) =>
      field.missing?.(values) ||
      (field.required && !values[field.name]) ||
      (field.equals && values[field.name] !== field.equals(context)),
  );
  const errors = byField(error);
  const sent = useRef(null); // the call that got no answer: asked for again, it is the same command
  const confirm = async (event) => {
    event?.preventDefault();
    if (busy || reason || missing) return;
    setBusy(true);
    setError(null);
    try {
      const [method, path, body, headers] = operation.send(context, values);
      const call = JSON.stringify([method, path, body]);
      if (sent.current?.call !== call) sent.current = { call, key: newKey() };
      const command = await act(method, path, body, { ...headers, "Idempotency-Key": sent.current.key });
      onClose();
      follow(command, operation, done);
    } catch (failed) {
      if (failed.status) sent.current = null;
      setError(failed);
      setBusy(false);
    }
  };
  const put = (item) => (value) => setValues({ ...values, [item.name]: value });
  const field = (item) => {
    if (item.type === "check")
      return html`<${CheckField} key=${item.name} label=${item.label} hint=${item.hint} checked=${values[item.name]} onInput=${put(item)} />`;
    if (item.type === "tables")
      return html`<${SourceTicks} key=${item.name} pipeline=${context.pipeline} captured=${context.tables} me=${me} ticked=${values[item.name]} onInput=${put(item)} />`;
    return html`<${TextField} key=${item.name} label=${item.label} hint=${item.hint} optional=${item.optional} placeholder=${typeof item.placeholder === "function" ? item.placeholder(context) : item.placeholder} type=${item.type ?? "text"} min=${item.type === "number" ? 1 : undefined}
        value=${values[item.name]} error=${errors[item.name]} onInput=${put(item)} />`;
  };
  return html`
    <${Dialog} title=${operation.title} subject=${subject(context)} icon=${operation.icon} tone=${operation.tone} onClose=${onClose}
      foot=${html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind=${operation.danger ? "danger" : "primary"} busy=${busy} reason=${reason ?? (missing ? `${missing.label} is missing` : null)} onClick=${confirm} data-confirm="true">${operation.title}<//>`}>
      ${reason && html`<${Notice} tone="warn" icon="warning" title="Not possible now"><p>${sentence(reason)}</p><//>`}
      <form class="stack" onSubmit=${confirm}>
        <ul class="consequences" aria-label="What will happen">${operation.says(context, values).map((text) => html`<li><${Icon} name="arrow" /><span>${text}</span></li>`)}</ul>
        ${fields.map(field)}
        <button type="submit" hidden></button>
      </form>
      ${error && !fields.some((item) => errors[item.name]) && html`<${Failure} error=${error} />`}
    <//>`;
}

const subject = ({ pipeline, table, checkpoint, version }) =>
  [
    pipeline.name,
    table?.table,
    checkpoint && `checkpoint ${label(checkpoint.number)}${checkpoint.name ? `, ${checkpoint.name}` : ""}`,
    version && `version ${label(version)}`,
  ]
    .filter(Boolean)
    .join(" · ");

const FINAL = ["done", "refused", "failed", "cancelled"];

/** Show the command's states as a toast until it has ended. */
export async function follow(command, operation, done) {
  const id = `command-${command.number}-${operation.title}`;
  const title = operation.title;
  try {
    let view = command;
    toast({
      id,
      icon: operation.icon,
      tone: "snapshot",
      title,
      text: `Command ${view.number} is ${view.state} …`,
      seconds: 120,
    });
    while (!FINAL.includes(view.state)) {
      view = await get(`${view.url}?wait=20s`);
      if (!FINAL.includes(view.state)) await new Promise((resolve) => setTimeout(resolve, 400));
    }
    if (view.state === "done")
      toast({ id, icon: "check", tone: "good", title, text: `Done: command ${view.number}${result(view.result)}.` });
    else
      toast({
        id,
        icon: "warning",
        tone: "bad",
        title: `${title}: ${view.state}`,
        text: [sentence(view.cause), sentence(view.remedy)].filter(Boolean).join(" "),
        seconds: 30,
      });
  } catch (error) {
    const text = error instanceof Problem ? error.message : "The state of the command is unknown";
    toast({ id, icon: "warning", tone: "bad", title, text, seconds: 20 });
  }
  done?.();
}

const result = (found) =>
  Object.entries(found ?? {})
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `, ${name} ${value}`)
    .join("");
