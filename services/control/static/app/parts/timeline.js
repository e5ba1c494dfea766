// The way of one checkpoint: a lane a service (marker arrived, part saved), then the apply and the publication of each table.
import { brief, bytes, clock, now, span } from "../format.js";
import { useWidth } from "../hooks.js";
import { html, useRef } from "../html.js";

const LANE = 30;
const HEAD = 30;
const RIGHT = 124;
const RIGHT_NARROW = 62;

/**
 * `checkpoint`: {number, started_at, completed_at, parts: [{name, marker_at, saved_at, bytes}], apply: {started_at, applied_at,
 * published_at, tables: [{name, seconds}]} or null}. Times in seconds.
 */
export function Timeline({ checkpoint }) {
  const ref = useRef(null);
  const width = useWidth(ref);
  return html`<div ref=${ref} class="timeline">${width > 0 && html`<${Lanes} checkpoint=${checkpoint} width=${width} />`}</div>`;
}

function Lanes({ checkpoint, width }) {
  const narrow = width < 620;
  const [labels, right] = narrow ? [92, RIGHT_NARROW] : [128, RIGHT];
  const start = Math.min(checkpoint.started_at, ...checkpoint.parts.map((part) => part.marker_at ?? Infinity)); // clocks of machines differ
  const { apply } = checkpoint;
  if (!checkpoint.parts.length)
    return html`<div class="stack"><p class="quiet">${now() - checkpoint.completed_at < 10 ? "How its markers went is not reported yet." : "How its markers went is no longer kept: services keep the last 50 checkpoints of an epoch."}</p>${apply ? html`<${Apply} apply=${apply} tables=${slowest(apply)} complete=${checkpoint.completed_at} />` : null}</div>`;
  const lanes = [...checkpoint.parts].sort((a, b) => order(a.name) - order(b.name) || (a.name < b.name ? -1 : 1));
  const end = Math.max(
    checkpoint.completed_at ?? 0,
    ...lanes.map((lane) => lane.saved_at ?? lane.marker_at ?? 0),
    start + 0.001,
  );
  const meshWidth = width - labels - right - 8;
  const x = (at) => labels + ((at - start) / (end - start)) * meshWidth;
  const height = HEAD + lanes.length * LANE + 6;
  const marks = ticks(end - start, narrow ? 3 : 6);
  const words = lanes
    .map(
      (lane) =>
        `${lane.name}: marker after ${span(lane.marker_at - start)}, part saved after ${span(lane.saved_at - start)}`,
    )
    .join("; ");
  return html`
    <div class="stack">
      <svg width=${width} height=${height} role="img" aria-label=${`Checkpoint ${checkpoint.number} through the mesh. ${words}. Complete after ${span(end - start)}.`}>
        ${marks.map((at) => html`<g key=${at}><path class="tl-rule" d="M${x(start + at)} ${HEAD - 6}V${height}" /><text class="tl-tick" x=${x(start + at)} y="14">${brief(at)}</text></g>`)}
        ${lanes.map((lane, i) => html`<${Lane} key=${lane.name} lane=${lane} y=${HEAD + i * LANE} x=${x} start=${start} labels=${labels} width=${width} right=${right} />`)}
        <path class="tl-end" d="M${x(end)} ${HEAD - 8}V${height}" />
      </svg>
      <ul class="legend"><li><span class="tl-key marker"></span>marker arrived</li><li><span class="tl-key saving"></span>saving its part</li><li><span class="tl-key saved"></span>part saved</li><li><span class="tl-key end"></span>complete at ${clock(end)}, after ${brief(end - start)}</li></ul>
      ${apply ? html`<${Apply} apply=${apply} tables=${slowest(apply)} complete=${checkpoint.completed_at ?? end} />` : html`<p class="quiet">${checkpoint.published ? "The details of its apply are no longer kept." : "Not applied to the lake yet."}</p>`}
    </div>`;
}

const slowest = (apply) => [...apply.tables].sort((a, b) => b.seconds - a.seconds).slice(0, 8);

const order = (name) => ["enumerator", "reader", "writer"].findIndex((role) => name.startsWith(role));

function ticks(seconds, most) {
  const rough = seconds / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  return Array.from({ length: Math.floor(seconds / step) + 1 }, (_, i) => i * step);
}

function Lane({ lane, y, x, start, labels, width, right }) {
  const middle = y + LANE / 2;
  const [from, to] = [lane.marker_at ?? start, lane.saved_at ?? lane.marker_at ?? start];
  return html`
    <g class="tl-lane">
      <title>${`${lane.name}: marker after ${brief(from - start)}, saved after ${brief(to - start)}${lane.bytes ? `, ${bytes(lane.bytes)}` : ""}`}</title>
      <path class="tl-base" d="M${labels} ${middle}H${width - right - 8}" />
      <text class="tl-name" x="0" y=${middle + 4}>${lane.name}</text>
      <rect class="tl-saving" x=${x(from)} y=${middle - 5} width=${Math.max(2, x(to) - x(from))} height="10" rx="3" />
      <path class="tl-marker" d="M${x(from)} ${middle - 8}v16" />
      <circle class="tl-saved" cx=${x(to)} cy=${middle} r="5" />
      <text class="tl-size" x=${width} y=${middle + 4}>${brief(to - from)}${lane.bytes && right > RIGHT_NARROW ? ` · ${bytes(lane.bytes)}` : ""}</text>
    </g>`;
}

function Apply({ apply, tables, complete }) {
  const longest = Math.max(0.001, ...tables.map((table) => table.seconds));
  return html`
    <div class="apply">
      <h3>In the lake</h3>
      <p class="soft">${apply.from && apply.from !== apply.to ? `Applied together with the checkpoints since ${apply.from}. ` : ""}Applied in ${span(apply.seconds)}${apply.published_at ? `, published at ${clock(apply.published_at)}: ${span(apply.published_at - complete)} after it was complete.` : "; not published yet."}</p>
      ${
        tables.length > 0 &&
        html`<ol class="apply-tables">${tables.map(
          (table) => html`
        <li key=${table.name}><span class="cut-off mono" title=${table.name}>${table.name}</span><span class="apply-bar"><span style=${{ width: `${(table.seconds / longest) * 100}%` }}></span></span><span class="number">${brief(table.seconds)}</span></li>`,
        )}</ol>`
      }
    </div>`;
}
