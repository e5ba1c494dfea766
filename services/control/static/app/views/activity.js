// Events as they happen, and the commands with their states.
import { get, getPage, pipelinePath, stream } from "../api.js";
import { ago, label, moment, took } from "../format.js";
import { usePoll } from "../hooks.js";
import { html, useEffect, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button, because, Card, Empty, Failure, Loading, Search, Segments, sentence } from "../parts/basics.js";
import { SEVERITY_TONES } from "../shapes.js";

const MOST = 500;
/** Not publications: there is one a checkpoint, and Cuts lists them. */
export const KINDS_TOLD = "epoch,kept,table,command,condition";
const FILTERS = [
  ["all", "All"],
  ["condition", "Conditions"],
  ["table", "Tables"],
  ["command", "Commands"],
  ["epoch", "Epochs"],
  ["kept", "Savepoints"],
];
const KINDS = {
  condition: ["warning", "quarantined"],
  epoch: ["again", "catch-up"],
  kept: ["flag", "snapshot"],
  table: ["database", "live"],
  command: ["person", "catch-up"],
};
const toneOf = (event) =>
  event.kind === "condition"
    ? event.ended
      ? "live"
      : (SEVERITY_TONES[event.severity] ?? "bad")
    : /quarantin|fail|lost|gave up/.test(event.text)
      ? "quarantined"
      : (KINDS[event.kind]?.[1] ?? "plain");
const iconOf = (event) => (event.kind === "condition" && event.ended ? "check" : (KINDS[event.kind]?.[0] ?? "info"));

/** How long each condition lasted that has ended, by its event: where the event of its beginning is listed and clear. */
function lengths(events) {
  const begun = new Map();
  const found = new Map();
  for (const event of [...events].reverse().filter(({ kind }) => kind === "condition")) {
    const open = begun.get(event.condition) ?? [];
    if (!event.ended) begun.set(event.condition, [...open, event.at]);
    else {
      if (open.length === 1) found.set(event, took(open[0], event.at)); // of several at a time it is not known which
      begun.set(event.condition, open.slice(1));
    }
  }
  return found;
}

export function Activity({ pipeline, ask }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("all");
  const live = useEvents(pipeline.name);
  const wanted = text.trim().toLowerCase();
  const shown = live.events?.filter(
    (event) =>
      (kind === "all" || event.kind === kind) &&
      (!wanted || `${event.kind} ${event.text}`.toLowerCase().includes(wanted)),
  );
  return html`
    <div class="columns activity">
      <section class="card" aria-label="Events">
        <div class="card-head"><h2>Events <span class="live-mark ${live.connected ? "on" : ""}">${live.connected ? "live" : "connecting"}</span></h2><${Search} label="Find an event" value=${text} onInput=${setText} />
          <${Segments} label="Kind of event" value=${kind} options=${FILTERS} onChange=${setKind} /></div>
        <div class="event-scroll" tabindex="0" role="region" aria-label="Newest events first"><${EventList} events=${shown} all=${live.events} error=${live.error} /></div>
      </section>
      <${Card} title="Commands" body=${false}><${Commands} pipeline=${pipeline} ask=${ask} /><//>
    </div>`;
}

/** What an event is known by: its id is another one from each control service. */
const idOf = (event) => `${event.slot}-${event.kind}-${event.text}`;

/** The newest events, then each as it happens; a lost connection is taken up again where it ended. */
function useEvents(name) {
  const [state, setState] = useState({ events: undefined, connected: false, error: null });
  useEffect(() => {
    const abort = new AbortController();
    const path = pipelinePath(name, "/events");
    let last = null;
    const add = (fresh) =>
      setState((before) => {
        const known = new Set((before.events ?? []).map(idOf));
        const all = [...fresh.filter((event) => !known.has(idOf(event))), ...(before.events ?? [])];
        return { ...before, events: all.sort((a, b) => b.at - a.at).slice(0, MOST) };
      });
    (async () => {
      while (!abort.signal.aborted) {
        try {
          const { items } = await getPage(`${path}?kind=${KINDS_TOLD}&limit=200`);
          add(items);
          last = items[0]?.id ?? last; // so that what happens before the stream begins is not missed
          setState((before) => ({ ...before, connected: true, error: null }));
          for await (const message of stream(`${path}?kind=${KINDS_TOLD}&stream=true`, {
            signal: abort.signal,
            lastId: last,
          })) {
            last = message.id ?? last;
            add([message.data]);
          }
        } catch (error) {
          if (abort.signal.aborted) return;
          setState((before) => ({ ...before, error }));
        }
        setState((before) => ({ ...before, connected: false }));
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    })();
    return () => abort.abort();
  }, [name]);
  return state;
}

/** `all`: the events from which is known how long something lasted, if `events` are some of them. */
export function EventList({ events, all = events, error, few }) {
  if (!events)
    return html`<div class="card-body">${error ? html`<${Failure} error=${error} />` : html`<${Loading} what="events" />`}</div>`;
  if (!events.length)
    return html`<${Empty} title="No events">Epochs, conditions, savepoints and phases of tables appear here.<//>`;
  const lasted = lengths(all);
  return html`
    <ol class="events ${few ? "few" : ""}">${events.map(
      (event) => html`
      <li key=${idOf(event)}><span class="event-icon tone-${toneOf(event)}"><${Icon} name=${iconOf(event)} size=${14} /></span>
        <span class="event-text">${sentence(event.text)}${lasted.has(event) ? html` <span class="quiet">It lasted ${lasted.get(event)}.</span>` : null}</span><time class="small quiet nowrap number" title=${moment(event.at)} datetime=${new Date(event.at * 1000).toISOString()}>${ago(event.at)}</time></li>`,
    )}</ol>`;
}

const STATE_TONES = {
  accepted: "waiting",
  running: "snapshot",
  done: "live",
  refused: "paused",
  failed: "quarantined",
  cancelled: "paused",
};
const STATE_ICONS = {
  accepted: "clock",
  running: "again",
  done: "check",
  refused: "minus",
  failed: "warning",
  cancelled: "cross",
};

function Commands({ pipeline, ask }) {
  const found = usePoll(
    (signal) => get(pipelinePath(pipeline.name, "/commands?limit=50"), { signal }),
    2,
    `commands ${pipeline.name}`,
  );
  if (found.error && !found.data)
    return html`<div class="card-body"><${Failure} error=${found.error} retry=${found.refresh} /></div>`;
  const all = [...(found.data ?? [])].sort((a, b) => b.number - a.number);
  if (!all.length)
    return html`<${Empty} title="No commands">What people ask of this pipeline is listed here, with its state.<//>`;
  const name = (command) => (command.kind === "define" ? "change the definition" : command.kind.replaceAll("_", " "));
  const about = (command) =>
    Object.entries({ ...command.arguments, ...command.result })
      .filter(([key]) => key !== "base")
      .filter(([, value]) => value !== null && typeof value !== "object")
      .map(([key, value]) => `${key} ${value}`)
      .join(", ");
  return html`
    <ol class="commands">${all.map(
      (command) => html`
      <li key=${command.number}>
        <div class="row spread"><span><span class="quiet number">${label(command.number)}</span> <b>${name(command)}</b> <span class="soft">${about(command)}</span></span>
          <span class="badge tone-${STATE_TONES[command.state]}"><${Icon} name=${STATE_ICONS[command.state]} size=${12} />${command.state}</span></div>
        <p class="small quiet">by ${command.by}, ${ago(command.at)}${command.waiting_for ? `; waits for ${command.waiting_for}` : ""}</p>
        ${["accepted", "running"].includes(command.state) && command.kind !== "cancel_command" && html`<div class="actions"><${Button} size="small" icon="cross" onClick=${() => ask("cancel_command", { command })}>Cancel<//></div>`}
        ${command.cause && html`<p class="small cause">${because(command)}</p>`}
      </li>`,
    )}</ol>`;
}
