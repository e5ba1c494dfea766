// Dialogs and toasts. A dialog is the browser's own <dialog>: it keeps the focus inside and closes by Escape.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button } from "./basics.js";

/** `subject`: what it is about. `wide`: for text. `firm`: a click outside doesn't close it. The first field gets the focus, else the first button below. */
export function Dialog({ title, subject, icon = "info", tone = "plain", wide, firm, children, foot, onClose }) {
  const ref = useRef(null);
  const pressed = useRef(null); // a drag that begins in a field and ends outside is no click outside
  const id = useId();
  useLayoutEffect(() => {
    // at once, so that a key pressed next is for the dialog
    const before = document.activeElement;
    const dialog = ref.current;
    dialog.showModal();
    dialog.querySelector(".dialog-body :is(input, select, textarea), .dialog-foot button")?.focus();
    return () => {
      dialog.close();
      if (before?.isConnected) before.focus();
    };
  }, []);
  return html`
    <dialog class="dialog ${wide ? "wide" : ""}" ref=${ref} aria-labelledby=${id} onCancel=${(event) => {
      event.preventDefault();
      onClose();
    }} onPointerDown=${(event) => {
      pressed.current = event.target;
    }}
      onClick=${(event) => !firm && event.target === ref.current && pressed.current === ref.current && onClose()}>
      <div class="dialog-head">
        <span class="dialog-icon tone-${tone}"><${Icon} name=${icon} size=${19} /></span>
        <div class="dialog-title"><h2 id=${id}>${title}</h2>${subject && html`<p class="small soft">${subject}</p>`}</div>
        <${Button} kind="plain" size="small" icon="cross" label="Close" onClick=${onClose} />
      </div>
      <div class="dialog-body">${children}</div>
      ${foot && html`<div class="dialog-foot">${foot}</div>`}
    </dialog>`;
}

const shown = [];
let redraw = () => {};
let numbers = 0;

function nextId() {
  numbers += 1;
  return `toast-${numbers}`;
}

/** Show a short message for some seconds. A second message with the same `id` takes the first one's place. */
export function toast({ id = nextId(), tone = "plain", icon = "info", title, text, seconds = 8 }) {
  const at = shown.findIndex((item) => item.id === id);
  const item = { id, tone, icon, title, text, timer: setTimeout(() => dismiss(id), seconds * 1000) };
  if (at >= 0) {
    clearTimeout(shown[at].timer);
    shown[at] = item;
  } else shown.push(item);
  redraw();
}

function dismiss(id) {
  const at = shown.findIndex((item) => item.id === id);
  if (at >= 0) shown.splice(at, 1);
  redraw();
}

export function Toasts() {
  const [, tick] = useState(0);
  useEffect(() => {
    redraw = () => tick((n) => n + 1);
    return () => {
      redraw = () => {};
    };
  }, []);
  return html`
    <div class="toasts" role="status" aria-live="polite">
      ${shown.map(
        (item) => html`
        <div key=${item.id} class="toast tone-${item.tone}"><${Icon} name=${item.icon} /><div><h3>${item.title}</h3>${item.text && html`<p class="soft">${item.text}</p>`}</div>
          <${Button} kind="plain" size="small" icon="cross" label="Dismiss" onClick=${() => dismiss(item.id)} /></div>`,
      )}
    </div>`;
}
