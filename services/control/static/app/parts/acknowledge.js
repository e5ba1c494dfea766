// Acknowledging a condition: a note, and for how long nobody is alerted of it again.
import { act } from "../api.js";
import { now } from "../format.js";
import { html, useState } from "../html.js";
import { Icon } from "../icons.js";
import { reasonAgainst } from "../operations.js";
import { Button, Failure, Notice, Segments, sentence } from "./basics.js";
import { Dialog, toast } from "./dialog.js";
import { byField, TextField } from "./fields.js";

const HOURS = { "1 h": 1, "8 h": 8, "24 h": 24 };
const ENDS = [...Object.keys(HOURS), "a date", "until it ends"].map((each) => [each, each]);

const hoursFromNow = (hours) => (hours ? now() + hours * 3600 : null);

/** Why this person can't acknowledge; null if they can. */
export const mayAcknowledge = (me) => reasonAgainst({ role: "operator" }, {}, me);

export function Acknowledge({ condition, me, onClose, onDone }) {
  const [note, setNote] = useState("");
  const [end, setEnd] = useState("8 h");
  const [date, setDate] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const until = { "a date": new Date(date).getTime() / 1000, "until it ends": null }[end] ?? hoursFromNow(HOURS[end]);
  const late = end === "a date" && !(until > now());
  const reason = mayAcknowledge(me) ?? (note.trim() ? (late ? "give a date to come" : null) : "Note is missing");
  const errors = byField(error);
  const send = async (event) => {
    event?.preventDefault();
    if (busy || reason) return;
    setBusy(true);
    try {
      const body = { note: note.trim(), until };
      await act("PUT", `/v1/conditions/${encodeURIComponent(condition.id)}/acknowledgement`, body);
      toast({ tone: "good", icon: "check", title: "Acknowledged", text: sentence(condition.summary) });
      onDone();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  const refused = mayAcknowledge(me);
  return html`
    <${Dialog} title="Acknowledge" subject=${sentence(condition.summary)} icon="check" tone="paused" onClose=${onClose}
      foot=${html`<${Button} onClick=${onClose}>Cancel<//>
        <${Button} kind="primary" busy=${busy} reason=${reason} onClick=${send} data-confirm="true">Acknowledge<//>`}>
      ${refused && html`<${Notice} tone="warn" icon="warning" title="Not possible now"><p>${sentence(refused)}</p><//>`}
      <ul class="consequences" aria-label="What will happen">
        <li><${Icon} name="arrow" /><span>It is listed below the others, with your name and note.</span></li>
        <li><${Icon} name="arrow" /><span>No alert is posted of it until then. It is not fixed by this.</span></li>
      </ul>
      <form class="stack" onSubmit=${send}>
        <${TextField} label="Note" placeholder="who works on it, or why it can wait" maxlength="500" value=${note}
          error=${errors.note} onInput=${setNote} />
        <div class="stack tight"><span class="field-label">Until</span>
          <${Segments} label="Until" value=${end} options=${ENDS} onChange=${setEnd} /></div>
        ${
          end === "a date" &&
          html`<${TextField} label="Date" type="datetime-local" value=${date} error=${errors.until}
            onInput=${setDate} />`
        }
        <button type="submit" hidden></button>
      </form>
      ${error && !errors.note && !errors.until && html`<${Failure} error=${error} />`}
    <//>`;
}
