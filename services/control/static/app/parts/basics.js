// Small parts: badges, bars, buttons, notices, numbers, menus, tabs.
import { capital, count, lasting, moment, sentence, UNKNOWN } from "../format.js";
import { html, useId, useLayoutEffect, useRef, useState } from "../html.js";
import { Icon, Shape } from "../icons.js";
import { PHASES } from "../rules.js";

export { sentence };

export const PHASE_MEANINGS = {
  waiting: "its turn to be read has not come",
  snapshot: "its rows are being read in chunks",
  "catch-up": "read; the changes since then are being applied",
  live: "the lake follows the source",
  paused: "held back by a person; the lake keeps its last content",
  quarantined: "stopped by a fault; the lake keeps the content that it has",
  dropped: "gone at the source; the lake keeps its last content",
};

/** `since`: as a tooltip. `quiet`: what it says is not sure now. */
export const Phase = ({ name, since, quiet }) =>
  html`<span class="badge tone-${quiet ? "dropped" : name}" title=${[PHASE_MEANINGS[name], lasting(since)].filter(Boolean).join("; ")}><${Shape} name=${name} />${name}</span>`;

export const Badge = ({ tone, icon, children }) =>
  html`<span class="badge tone-${tone}"><${Icon} name=${icon} size=${12} />${children}</span>`;

const MODES = {
  running: ["live", "live"],
  paused: ["paused", "paused"],
  stopped: ["dropped", "stopped"],
  deleting: ["quarantined", "dropped"],
  halted: ["quarantined", "quarantined"],
  waiting: ["paused", "waiting"],
  unknown: ["dropped", "waiting"],
  critical: ["bad", "quarantined"],
  warning: ["warn", "quarantined"],
  info: ["plain", "waiting"],
};

/** What a pipeline does, as `state` of shapes.js says it, in one word. `seen`: when that was so, if it is old by now. */
export function Mode({ about, seen }) {
  const word = about.word ?? about.mode;
  const [tone, shape] = seen ? MODES.unknown : (MODES[about.mode] ?? MODES.unknown);
  return html`<span class="badge tone-${seen ? tone : (about.tone ?? tone)}"><${Shape} name=${shape} />${seen ? `${word} at ${seen}` : word}</span>`;
}

export function Button({
  children,
  icon,
  kind = "",
  size = "",
  busy = false,
  reason = null,
  type = "button",
  label,
  onClick,
  ...rest
}) {
  const off = busy || Boolean(reason);
  return html`
    <button type=${type} class="button ${kind} ${size} ${children ? "" : "icon"}" aria-disabled=${off ? "true" : undefined} title=${reason ?? label}
      aria-label=${label} onClick=${(event) => (off ? event.preventDefault() : onClick?.(event))} ...${rest}>
      ${busy ? html`<span class="spinner" aria-hidden="true"></span>` : icon && html`<${Icon} name=${icon} />`}${children}
    </button>`;
}

export const Bar = ({ fraction, tone, label }) => html`
  <div class="bar tone-${tone}" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.floor(fraction * 100)}>
    <span style=${{ width: `${Math.max(0, Math.min(1, fraction)) * 100}%` }}></span>
  </div>`;

/** All tables as one bar, a part a phase, with a legend in words. */
export function Phases({ tables, legend = true }) {
  const found = PHASES.filter((phase) => tables[phase]);
  const words = found.map((phase) => `${tables[phase]} ${phase}`).join(", ") || "no tables yet";
  return html`
    <div class="stack tight">
      <div class="stacked" role="img" aria-label=${`Tables: ${words}`}>
        ${found.map((phase) => html`<span key=${phase} class="tone-${phase}" style=${{ flexGrow: tables[phase] }}></span>`)}
      </div>
      ${legend && html`<ul class="legend">${found.map((phase) => html`<li key=${phase} class="tone-${phase}"><${Shape} name=${phase} />${count(tables[phase])} ${phase}</li>`)}</ul>`}
    </div>`;
}

export const Notice = ({ tone = "plain", icon = "info", title, children }) => html`
  <div class="notice tone-${tone}" role=${tone === "bad" ? "alert" : undefined}><${Icon} name=${icon} /><div>${title && html`<h3>${title}</h3>`}${children}</div></div>`;

/** An error with what to do about it, and each of its faults if it has several. */
export const Failure = ({ error, retry }) => html`
  <${Notice} tone="bad" icon="warning" title=${capital(error.message)}>
    ${
      error.errors?.length > 1
        ? html`<ul class="plan-list">${error.errors.map((item) => html`<li key=${`${item.field}${item.detail}`}>${sentence(item.detail)} ${sentence(item.remedy)}</li>`)}</ul>`
        : error.remedy && html`<p>${sentence(error.remedy)}</p>`
    }
    ${retry && html`<div class="actions"><${Button} size="small" icon="again" onClick=${retry}>Try again<//></div>`}
  <//>`;

/** A cause of the API, {sentence, remedy}, as sentences. */
export const causeText = (cause) => because({ cause: cause.sentence, remedy: cause.remedy });

/** Cause and remedy of a table or command, as sentences. */
export const because = ({ cause, remedy }) => [cause, remedy].filter(Boolean).map(sentence).join(" ");

/** A text of the API with its `code` set as code. */
export const prose = (text) => text?.split("`").map((part, i) => (i % 2 ? html`<code key=${i}>${part}</code>` : part));

export const Stat = ({ name, value, unit, note, wide }) => html`
  <div class="stat ${wide ? "wide" : ""}"><dt>${name}</dt><dd><b>${value ?? UNKNOWN}</b>${unit && html` <small>${unit}</small>`}${note && html`<p>${note}</p>`}</dd></div>`;

export const Card = ({ title, end, children, body = true, label }) => html`
  <section class="card" aria-label=${label ?? (typeof title === "string" ? title : undefined)}>
    ${title && html`<div class="card-head"><h2>${title}</h2>${end}</div>`}
    ${body ? html`<div class="card-body">${children}</div>` : children}
  </section>`;

export const Empty = ({ title, children, actions }) =>
  html`<div class="empty"><h2>${title}</h2>${children && html`<p>${children}</p>`}${actions && html`<div class="actions">${actions}</div>`}</div>`;

export const Loading = ({ what = "" }) => html`<p class="quiet" role="status">Loading ${what} …</p>`;

/** What a poll gave: the first load, an error without data, or the children over the data, with a note if that is old (unless `within` a view that has one). */
export function Polled({ of, what, within, children }) {
  if (of.data === undefined)
    return of.error ? html`<${Failure} error=${of.error} retry=${of.refresh} />` : html`<${Loading} what=${what} />`;
  return html`${isStale(of) && !within && html`<${Stale} of=${of} />`}${children(of.data)}`;
}

/** Whether what a poll has may no longer be so: its last try failed, or its answer is old. */
export const isStale = (of) => Boolean(of.error) || of.old;

/** That what is shown is not of now, and of when it is. */
export const Stale = ({ of }) =>
  html`<${Notice} tone="warn" icon="warning" title=${`As of ${moment(of.at)}: what you see may have changed`}><p>${of.error ? sentence(of.error.message) : "Asking for the present state …"}</p><//>`;

/** A choice of a few: buttons side by side. `options`: [value, text, phase?]. */
export const Segments = ({ label, value, options, onChange }) => html`
  <div class="segments" role="group" aria-label=${label}>
    ${options.map(
      ([id, text, shape]) => html`
      <button type="button" key=${id} aria-pressed=${value === id ? "true" : "false"} onClick=${() => onChange(id)}>${shape && html`<span class="tone-${shape}" style=${{ color: "var(--tone)" }}><${Shape} name=${shape} /></span>`}${text}</button>`,
    )}
  </div>`;

export const Search = ({ value, onInput, label }) => html`
  <div class="search"><${Icon} name="search" /><input class="input" type="search" aria-label=${label} placeholder=${label} value=${value} onInput=${(event) => onInput(event.target.value)} /></div>`;

/**
 * A button that opens a list of actions. `items`: {label, note, icon, danger, reason, run}, or null for a line.
 * The list is in the browser's top layer (popover), so that no scrolling box cuts it off; Escape and a click outside close it.
 */
export function Menu({ label, icon = "more", items }) {
  const [open, setOpen] = useState(false);
  const list = useRef(null);
  const id = useId();
  const show = (event) => {
    const rect = event.currentTarget.getBoundingClientRect();
    if (open) return list.current.hidePopover();
    list.current.showPopover();
    list.current.dataset.right = rect.right;
    list.current.dataset.top = rect.top;
    list.current.dataset.bottom = rect.bottom;
    return undefined;
  };
  useLayoutEffect(() => {
    if (!open) return;
    const { offsetHeight: height, offsetWidth: width, dataset } = list.current; // with its items
    list.current.style.left = `${Math.max(8, Math.min(Number(dataset.right) - width, innerWidth - width - 8))}px`;
    const below = Number(dataset.bottom) + 6;
    list.current.style.top = `${below + height + 8 < innerHeight ? below : Math.max(8, Number(dataset.top) - height - 6)}px`;
    list.current.querySelector("button")?.focus();
  }, [open]);
  const keys = (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    event.stopPropagation();
    const all = [...list.current.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    all[(at + all.length) % all.length]?.focus();
  };
  const choose = (item) => {
    list.current.hidePopover();
    item.run();
  };
  return html`
    <${Button} icon=${icon} kind="plain" label=${label} aria-haspopup="true" aria-expanded=${open ? "true" : "false"} aria-controls=${id} onClick=${show} />
    <div class="menu-list" id=${id} ref=${list} popover="auto" role="group" aria-label=${label} onToggle=${(event) => setOpen(event.newState === "open")} onKeyDown=${keys}>
      ${
        open &&
        items.map((item) =>
          item === null
            ? html`<hr />`
            : html`
        <button type="button" key=${item.label} class=${item.danger ? "danger" : ""} aria-disabled=${item.reason ? "true" : undefined} onClick=${() => choose(item)}>
          <${Icon} name=${item.icon} /><span>${item.label}<span class="menu-note">${item.reason ?? item.note}</span></span>
        </button>`,
        )
      }
    </div>`;
}

export function Tabs({ label, tabs, current }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    // on a phone they don't all fit
    const { offsetLeft, offsetWidth } = ref.current.querySelector("[aria-current]");
    ref.current.scrollLeft = offsetLeft + offsetWidth / 2 - ref.current.clientWidth / 2;
  }, [current]);
  return html`
    <nav class="tabs" ref=${ref} aria-label=${label}>
      ${tabs.map((tab) => html`<a key=${tab.id} href=${tab.href} aria-current=${tab.id === current ? "page" : undefined}>${tab.text}${tab.count ? html`<span class="count ${tab.warn ? "warn" : ""}">${count(tab.count)}</span>` : null}</a>`)}
    </nav>`;
}
