// The split grid of a table: a cell a chunk, on a canvas, so that 100,000 of them stay fast.
import { count, percent } from "../format.js";
import { colour, useTheme, useWidth } from "../hooks.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "../html.js";

export const CELLS = ["waiting", "reading", "read", "in the lake"];
const TONES = ["line-strong", "paused-fill", "snapshot-fill", "live-fill"];
const MOST_PX = 440;

/** `cells`: a Uint8Array of indices into CELLS. `about(i)`: a text about that chunk, for whoever points at it. */
export function SplitGrid({ cells, about, label }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [chosen, choose] = useState(null);
  const [pointed, setPointed] = useState(false);
  const { size, columns, rows } = useMemo(() => measure(cells.length, width), [cells.length, width]);
  const counts = useMemo(() => tally(cells), [cells]);
  useLayoutEffect(() => {
    // not after the paint: a canvas that has just got its size is empty
    if (width) draw(canvas.current, cells, { size, columns, rows }, chosen);
  }, [cells, size, columns, rows, theme, chosen]);
  if (!cells.length) return null;
  const at = chosen === null ? null : Math.min(chosen, cells.length - 1);
  const text =
    at === null
      ? ""
      : `Chunk ${count(at + 1)} of ${count(cells.length)}: ${CELLS[cells[at]]}${about?.(at) ? ` ${about(at)}` : ""}`;
  const point = (event) => {
    const rect = canvas.current.getBoundingClientRect();
    const [column, row] = [
      Math.floor((event.clientX - rect.left) / size),
      Math.floor((event.clientY - rect.top) / size),
    ];
    const index = row * columns + column;
    setPointed(true);
    choose(column < columns && index >= 0 && index < cells.length ? index : null);
  };
  const keys = (event) => {
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
      PageDown: 10 * columns,
      PageUp: -10 * columns,
      Home: -Infinity,
      End: Infinity,
    }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setPointed(false);
    choose(Math.max(0, Math.min(cells.length - 1, (at ?? 0) + step)));
  };
  return html`
    <div class="stack tight">
      <ul class="legend">
        ${CELLS.map((name, i) => html`<li key=${name}><span class="swatch cell-${i}" style=${{ background: `var(--${TONES[i]})` }}></span>${name} <b class="number">${count(counts[i])}</b></li>`)}
        <li class="quiet">${percent((counts[2] + counts[3]) / cells.length)} read</li>
      </ul>
      <div ref=${box} class="split-grid">
        <canvas ref=${canvas} tabindex="0" role="slider" aria-label=${label} aria-valuemin="1" aria-valuemax=${cells.length} aria-valuenow=${(at ?? 0) + 1}
          aria-valuetext=${text || `${count(cells.length)} chunks`} style=${{ width: `${columns * size}px`, height: `${rows * size}px` }}
          onPointerMove=${point} onPointerDown=${point} onPointerLeave=${() => choose(null)} onKeyDown=${keys} onFocus=${() => chosen === null && choose(0)} onBlur=${() => choose(null)}></canvas>
      </div>
      <p class="split-about soft small number">${text || "Point at a cell, or focus the grid and use the arrow keys."}</p>
      ${pointed ? null : html`<span class="hidden" aria-live="polite">${text}</span>`}
    </div>`;
}

/** The largest cells (2 to 18 px) with which all rows fit. */
function measure(number, width) {
  if (!width || !number) return { size: 2, columns: 1, rows: 0 };
  for (let size = 18; size >= 2; size -= 1) {
    const columns = Math.floor(width / size);
    const rows = Math.ceil(number / columns);
    if (rows * size <= MOST_PX || size === 2) return { size, columns, rows };
  }
  return null;
}

function tally(cells) {
  const counts = [0, 0, 0, 0];
  for (const cell of cells) counts[cell] += 1;
  return counts;
}

function draw(canvas, cells, { size, columns, rows }, chosen) {
  const scale = devicePixelRatio || 1;
  canvas.width = columns * size * scale;
  canvas.height = rows * size * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const gap = size >= 10 ? 2 : size >= 4 ? 1 : 0;
  const side = size - gap;
  TONES.forEach((tone, state) => {
    pen.fillStyle = colour(tone);
    pen.beginPath();
    for (let i = 0; i < cells.length; i += 1) {
      if (cells[i] !== state) continue;
      const [x, y] = [(i % columns) * size, Math.floor(i / columns) * size];
      if (state === 0 && side >= 6) {
        const third = Math.max(2, Math.floor(side / 3)); // waiting: a small square, so that shape tells it too
        pen.rect(x + (side - third) / 2, y + (side - third) / 2, third, third);
      } else if (state === 1 && side >= 6) {
        pen.moveTo(x, y + side);
        pen.lineTo(x + side, y);
        pen.lineTo(x + side, y + side);
        pen.closePath();
      } else if (state === 2 && side >= 6) pen.rect(x + 1, y + 1, side - 2, side - 2);
      else pen.rect(x, y, side, side);
    }
    pen.fill();
  });
  if (chosen === null) return;
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 2;
  const [x, y] = [(chosen % columns) * size, Math.floor(chosen / columns) * size];
  pen.strokeRect(x - 1, y - 1, side + 2, side + 2);
}
