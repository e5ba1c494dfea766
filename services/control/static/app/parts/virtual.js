// A list of any length: only the rows in view exist. Sorting and filtering are the caller's.
import { html, useEffect, useRef, useState } from "../html.js";
import { Icon } from "../icons.js";

const MARGIN_ROWS = 6;

/**
 * `columns`: {id, title, width (of a CSS grid), number?, sort?}; `row(item)` gives one cell a column.
 * `height`: of a row in px. The view is as high as its rows, up to `most` px.
 */
export function VirtualTable({ label, items, columns, row, keyOf, height = 46, most = 640, sorted, onSort }) {
  const view = useRef(null);
  const [top, setTop] = useState(0);
  const visible = Math.min(items.length * height, most);
  const [first, last] = [
    Math.max(0, Math.floor(top / height) - MARGIN_ROWS),
    Math.min(items.length, Math.ceil((top + visible) / height) + MARGIN_ROWS),
  ];
  useEffect(() => {
    if (view.current && view.current.scrollTop !== top) setTop(view.current.scrollTop);
  }, [items.length]);
  const template = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
  const keys = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const at = event.target.closest("[aria-rowindex]");
    if (!step || !at) return;
    event.preventDefault();
    const index = Number(at.getAttribute("aria-rowindex")) - 2 + step;
    if (index < 0 || index >= items.length) return;
    const box = view.current;
    if (index * height < box.scrollTop) box.scrollTop = index * height;
    if ((index + 1) * height > box.scrollTop + box.clientHeight)
      box.scrollTop = (index + 1) * height - box.clientHeight;
    setTop(box.scrollTop);
    requestAnimationFrame(() =>
      box
        .querySelector(`[aria-rowindex="${index + 2}"] a, [aria-rowindex="${index + 2}"] button`)
        ?.focus({ preventScroll: true }),
    );
  };
  return html`
    <div class="grid-table ${items.length * height > most ? "scrolls" : ""}" role="table" aria-label=${label} aria-rowcount=${items.length + 1} aria-colcount=${columns.length} onKeyDown=${keys}>
      <div role="rowgroup" class="grid-top"><div class="grid-row grid-head" role="row" aria-rowindex="1" style=${template}>
        ${columns.map(
          (column) => html`
          <div key=${column.id} class=${column.number ? "number" : ""} role="columnheader" aria-sort=${sorted?.id === column.id ? (sorted.down ? "descending" : "ascending") : undefined}>
            ${column.sort && onSort ? html`<button type="button" onClick=${() => onSort(column.id)}>${column.title}${sorted?.id === column.id && html`<${Icon} name=${sorted.down ? "down" : "up"} size=${12} />`}</button>` : column.title}
          </div>`,
        )}
      </div></div>
      <div class="grid-view" role="rowgroup" ref=${view} style=${{ height: `${visible}px` }} onScroll=${(event) => setTop(event.target.scrollTop)}>
        <div role="presentation" style=${{ height: `${items.length * height}px` }}></div>
        ${items.slice(first, last).map(
          (item, i) => html`
          <div key=${keyOf(item)} class="grid-row" role="row" aria-rowindex=${first + i + 2} style=${{ ...template, top: `${(first + i) * height}px`, height: `${height}px` }}>
            ${row(item).map((content, c) => html`<div key=${columns[c].id} class="cell ${columns[c].number ? "number" : ""}" role="cell">${content}</div>`)}
          </div>`,
        )}
      </div>
    </div>`;
}
