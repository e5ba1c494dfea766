// The mesh as a live picture: services as boxes, channels as lines whose width and speed show their bytes a second.
import { bytes } from "../format.js";
import { useWidth } from "../hooks.js";
import { html, useRef } from "../html.js";

const BOX = { width: 138, height: 58 };
const ICONS = {
  source:
    "M2.500 4c0-1.100 2.500-2 5.500-2s5.500.9 5.500 2-2.500 2-5.500 2-5.500-.9-5.500-2M2.500 4v8c0 1.100 2.500 2 5.500 2s5.500-.9 5.500-2V4M2.500 8c0 1.100 2.500 2 5.500 2s5.500-.9 5.500-2",
  enumerator: "M8 2v3M8 11v3M2 8h3M11 8h3M8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4",
  reader:
    "M8 3.500C6.500 2.500 4.500 2.300 2.500 2.500v10c2-.2 4 0 5.500 1 1.500-1 3.500-1.200 5.500-1v-10c-2-.2-4 0-5.500 1M8 3.500v10",
  writer: "M10.500 2.500l3 3-8 8H2.500v-3z",
  store: "M2.500 5 8 2l5.500 3v6L8 14l-5.500-3zM2.500 5 8 8l5.500-3M8 8v6",
  spark_writer: "M9 1.500 3.500 9H8l-1 5.500L12.500 7H8z",
  lake: "M2 6c1.500-1.300 2.500-1.300 4 0s2.500 1.300 4 0 2.500-1.300 4 0M2 10c1.500-1.300 2.500-1.300 4 0s2.500 1.300 4 0 2.500-1.300 4 0",
};

/**
 * `nodes`: {id, kind, title, note, state: "good" | "warn" | "bad" | "off"}; one source, store, spark_writer and lake each,
 * at most one enumerator, any number of readers and writers. `links`: {from, to, rate (bytes/s, null: unknown), control, detail}.
 */
export function Mesh({ nodes, links, still }) {
  const ref = useRef(null);
  const width = useWidth(ref);
  const down = width > 0 && width < 700;
  const places = down ? downwards(nodes, width) : rightwards(nodes, Math.max(width, 700));
  const words = links
    .filter((line) => !line.control && line.rate)
    .map((line) => `${line.from} to ${line.to} ${bytes(line.rate)} a second`);
  return html`
    <div ref=${ref} class="mesh ${still ? "still" : ""}">
      ${
        width > 0 &&
        html`
        <svg viewBox="0 0 ${places.width} ${places.height}" width="100%" height=${places.height} role="img" aria-label=${`Mesh: ${nodes.map((node) => `${node.title} (${node.note || node.state})`).join(", ")}. ${words.length ? `Channels: ${words.join(", ")}` : "No bytes flow now"}`}>
          ${links.map((line) => html`<${Line} key=${`${line.from}>${line.to}`} line=${line} from=${places.at[line.from]} to=${places.at[line.to]} down=${down} box=${places.box} />`)}
          ${nodes.map((node) => html`<${Node} key=${node.id} node=${node} at=${places.at[node.id]} box=${places.box} />`)}
        </svg>`
      }
    </div>`;
}

function rightwards(nodes, width) {
  const box = width < 900 ? { width: 112, height: 58 } : BOX;
  const readers = nodes.filter((node) => node.kind === "reader");
  const writers = nodes.filter((node) => node.kind === "writer");
  const rows = Math.max(readers.length, writers.length, 1);
  const pitch = rows > 6 ? 66 : 76;
  const height = 86 + rows * pitch;
  const middle = 86 + (rows * pitch) / 2;
  const [left, right] = [box.width / 2 + 4, width - box.width / 2 - 4];
  const x = (column) => left + ((right - left) * column) / 5;
  const spread = (list, column, at) =>
    list.forEach((node, i) => {
      at[node.id] = { x: x(column), y: middle + (i - (list.length - 1) / 2) * pitch };
    });
  const at = {
    source: { x: x(0), y: middle },
    store: { x: x(3), y: middle },
    spark_writer: { x: x(4), y: middle },
    lake: { x: x(5), y: middle },
    enumerator: { x: x(1.5), y: 36 },
  };
  spread(readers, 1, at);
  spread(writers, 2, at);
  return { at, width, height, box };
}

function downwards(nodes, width) {
  const abreast = Math.min(
    3,
    Math.max(2, ...["reader", "writer"].map((kind) => nodes.filter((node) => node.kind === kind).length)),
  );
  const box = { width: Math.min(BOX.width, (width - 4 - 10 * (abreast - 1)) / abreast), height: BOX.height };
  const rows = [
    ["source"],
    ["enumerator"],
    ...lines(nodes, "reader"),
    ...lines(nodes, "writer"),
    ["store"],
    ["spark_writer"],
    ["lake"],
  ];
  const at = {};
  for (const [r, row] of rows.entries()) {
    for (const [i, id] of row.entries()) {
      at[id] = { x: width / 2 + (i - (row.length - 1) / 2) * (box.width + 10), y: 34 + r * 92 };
    }
  }
  at.enumerator.x = width - box.width / 2 - 2;
  return { at, width, height: rows.length * 92 - 20, box };
}

function lines(nodes, kind) {
  const ids = nodes.filter((node) => node.kind === kind).map((node) => node.id);
  const found = [];
  for (let i = 0; i < ids.length; i += 3) found.push(ids.slice(i, i + 3));
  return found;
}

function Line({ line, from, to, down, box }) {
  if (!from || !to) return null;
  const path = line.control ? curve(from, to, box, true) : curve(from, to, box, down);
  const rate = line.rate ?? 0;
  const thick = line.control ? 1.2 : 1.5 + Math.min(8, Math.max(0, Math.log10(1 + rate / 500)) * 1.5);
  const seconds = rate > 0 ? Math.max(0.5, 3.2 - Math.log10(rate + 1) * 0.36) : 0;
  const title = `${line.from} → ${line.to}: ${line.control ? "markers and reports" : rate ? `${bytes(rate)}/s` : "no bytes now"}${line.detail ? `, ${line.detail}` : ""}`;
  return html`
    <g class=${line.control ? "mesh-control" : "mesh-line"}>
      <title>${title}</title>
      <path class="mesh-hit" d=${path} /><path class="mesh-rail" d=${path} style=${{ strokeWidth: thick }} />
      ${rate > 0 && html`<path class="mesh-flow" d=${path} style=${{ strokeWidth: Math.max(2.2, thick * 0.55), animationDuration: `${seconds.toFixed(1)}s` }} />`}
    </g>`;
}

function curve(from, to, box, vertical) {
  if (vertical) {
    const sign = Math.sign(to.y - from.y) || 1;
    const [y1, y2] = [from.y + (sign * box.height) / 2, to.y - (sign * box.height) / 2];
    const bend = Math.max(14, Math.abs(y2 - y1) / 2) * sign;
    return `M${from.x} ${y1}C${from.x} ${y1 + bend} ${to.x} ${y2 - bend} ${to.x} ${y2}`;
  }
  const [x1, x2] = [from.x + box.width / 2, to.x - box.width / 2];
  const bend = Math.max(14, (x2 - x1) / 2);
  return `M${x1} ${from.y}C${x1 + bend} ${from.y} ${x2 - bend} ${to.y} ${x2} ${to.y}`;
}

const Node = ({ node, at, box }) =>
  at &&
  html`
  <g class="mesh-node ${node.state}" transform="translate(${at.x - box.width / 2} ${at.y - box.height / 2})">
    <title>${node.title}: ${node.note ?? ""}${node.detail ? ` (${node.detail})` : ""}</title>
    <rect width=${box.width} height=${box.height} rx="10" />
    <g transform="translate(11 11)"><path class="mesh-icon" d=${ICONS[node.kind]} /></g>
    <text class="mesh-title" x="34" y="23.500">${fitted(node.title, box.width - 52, 7.1)}</text>
    <text class="mesh-note" x="11" y="45">${fitted(node.note ?? "", box.width - 18, 6.3)}</text>
    ${node.state === "off" ? html`<path class="mesh-state" d="M-4 -4l8 8M4 -4l-8 8" transform="translate(${box.width - 15} 19)" />` : html`<circle class="mesh-state" cx=${box.width - 15} cy="19" r="4" />`}
  </g>`;

const fitted = (text, width, per) =>
  text.length * per > width ? `${text.slice(0, Math.max(1, Math.floor(width / per) - 1))}…` : text;
