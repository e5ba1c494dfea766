// Line charts over time (uPlot, loaded when the first chart is drawn).
import { clock } from "../format.js";
import { colour, useTheme, useWidth } from "../hooks.js";
import { html, useEffect, useRef, useState } from "../html.js";

const BINARY = Array.from({ length: 50 }, (_, i) => 2 ** i);
let loading = null;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const base = new URL("../../vendor/", import.meta.url);
    const style = Object.assign(document.createElement("link"), {
      rel: "stylesheet",
      href: new URL("uPlot.min.css", base).href,
    });
    const script = Object.assign(document.createElement("script"), { src: new URL("uPlot.iife.min.js", base).href });
    script.onload = () => resolve(window.uPlot);
    script.onerror = reject;
    document.head.append(style, script);
  });
  return loading;
}

/**
 * `series`: {name, tone, dash?}; `data`: [times, values of series 1, …], times in seconds; `form`: a value as text;
 * `least`: the lowest top of the scale; `binary`: its steps are powers of two, as bytes are counted.
 * The text under it says the newest values, for those who don't see the picture.
 */
export function Chart({ label, series, data, form, least = 1, binary = false, height = 190, windowSeconds = 900 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    if (!width) return undefined;
    let over = false;
    library().then(
      (UPlot) => {
        const place = box.current; // uPlot may call back once more when the view, and so `box.current`, is gone
        if (over || !place) return;
        const axis = {
          stroke: colour("ink-3"),
          grid: { stroke: colour("line"), width: 1 },
          ticks: { show: false },
          font: `11.5px ${colour("sans")}`,
        };
        plot.current = new UPlot(
          {
            width,
            height,
            padding: [12, 6, 0, 0],
            cursor: { y: false, points: { size: 7 } },
            legend: { show: false },
            scales: {
              x: {
                range: (_, first) => [
                  Math.max(Date.now() / 1000 - windowSeconds, Math.min(first ?? Infinity, Date.now() / 1000 - 60)),
                  Date.now() / 1000,
                ],
              },
              y: { range: (_, _low, high) => [0, Math.max(high * 1.15, least)] },
            },
            axes: [
              {
                ...axis,
                grid: { show: false },
                size: 26,
                space: 90,
                values: (_, ticks) => ticks.map((at) => clock(at).slice(0, ticks[1] - ticks[0] < 60 ? 8 : 5)),
              },
              {
                ...axis,
                size: 66,
                space: 34,
                ...(binary ? { incrs: BINARY } : {}),
                values: (_, ticks) => ticks.map(form),
              },
            ],
            series: [
              {},
              ...series.map((line, i) => ({
                label: line.name,
                stroke: colour(line.tone),
                width: 2,
                dash: line.dash,
                fill: i === 0 ? `${colour(line.tone)}1c` : undefined,
                points: { show: alone, size: 6, fill: colour(line.tone) },
                spanGaps: true,
              })),
            ],
            hooks: { setCursor: [(shown) => tip(shown, series, form, place)] },
          },
          data,
          place,
        );
      },
      () => setFailed(true),
    );
    return () => {
      over = true;
      plot.current?.destroy();
      plot.current = null;
    };
  }, [width, theme, height, series.map((line) => line.name).join()]);
  useEffect(() => plot.current?.setData(data), [data]);
  const newest = series.map((line, i) => `${line.name} ${form(data[i + 1]?.at(-1) ?? null)}`).join(", ");
  return html`
    <figure class="chart" role="img" aria-label=${`${label}, last ${windowSeconds / 60} minutes. Now: ${newest}`}>
      <div ref=${box} class="chart-box" style=${{ height: `${height}px` }}>${failed && html`<p class="quiet">The chart library could not be loaded; reload the page.</p>`}<div class="chart-tip" hidden></div></div>
      <ul class="legend">${series.map((line, i) => html`<li key=${line.name}><span class="swatch" style=${{ background: `var(--${line.tone})` }}></span>${line.name} <b class="number">${form(data[i + 1]?.at(-1) ?? null)}</b></li>`)}</ul>
    </figure>`;
}

/** A line needs two values; the first one is a dot. */
const alone = (plot, line) => plot.data[line].filter((value) => value !== null).length === 1;

function tip(plot, series, form, box) {
  const element = box.querySelector(".chart-tip");
  const { idx, left } = plot.cursor;
  element.hidden = idx === null || idx === undefined || left < 0;
  if (element.hidden) return;
  element.replaceChildren(
    ...[clock(plot.data[0][idx]), ...series.map((line, i) => `${line.name}: ${form(plot.data[i + 1][idx])}`)].map(
      (text) => Object.assign(document.createElement("div"), { textContent: text }),
    ),
  );
  const x = left + plot.bbox.left / devicePixelRatio;
  element.style.left = `${Math.min(x + 12, box.clientWidth - element.offsetWidth - 4)}px`;
}
