// Icons of 16 x 16, drawn with the colour of their text. Each phase has a shape of its own, so that colour is never the only sign.
import { html } from "./html.js";

const LINES = {
  pause: "M5.500 3.500v9M10.500 3.500v9",
  play: "M5 3.200 12.500 8 5 12.800z",
  stop: "M4 4h8v8H4z",
  more: "M3.500 8h.01M8 8h.01M12.500 8h.01",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  check: "m3 8.500 3.500 3.500L13 4.500",
  cross: "m4 4 8 8M12 4l-8 8",
  warning: "M8 2.200 14.500 13.500h-13zM8 6.500v3M8 11.600h.01",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12M8 7.500V11M8 5h.01",
  copy: "M5.500 5.500h8v8h-8zM5.500 10.500h-3v-8h8v3",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10M10.800 10.800 14 14",
  arrow: "M3 8h10M9 4l4 4-4 4",
  down: "m4 6 4 4 4-4",
  up: "m4 10 4-4 4 4",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6M8 1.500v1M8 13.500v1M1.500 8h1M13.500 8h1M3.400 3.400l.7.7M11.900 11.900l.7.7M3.400 12.600l.7-.7M11.900 4.100l.7-.7",
  moon: "M13.500 9.500A5.800 5.800 0 0 1 6.500 2.500a5.800 5.800 0 1 0 7 7",
  flag: "M4 14V2.500h7.500L10 5.500l1.500 3H4",
  cut: "M3 4h4M9.500 4H13M3 8h3M8.500 8H13M3 12h2M7.500 12H13M9.500 1.500 5 14.500",
  again: "M13 8a5 5 0 1 1-1.600-3.700M13 2v3h-3",
  back: "M3 8a5 5 0 1 0 1.600-3.700M3 2v3h3",
  bin: "M3 4.500h10M6.500 4.500V3h3v1.500M4.500 4.500l.5 9h6l.5-9",
  gauge: "M2.500 11.500a6 6 0 1 1 11 0M8 10l2.500-3.500",
  key: "M10.500 9a3.500 3.500 0 1 0-3.400-2.700L2.500 11v2.500H5V12h1.500v-1.500L7.800 9.200A3.500 3.500 0 0 0 10.500 9M11 5h.01",
  out: "M6 2.500H3v11h3M7 8h6.500M10.500 5l3 3-3 3",
  database:
    "M2.500 4c0-1.100 2.500-2 5.500-2s5.500.9 5.500 2-2.500 2-5.500 2-5.500-.9-5.500-2M2.500 4v8c0 1.100 2.500 2 5.500 2s5.500-.9 5.500-2V4M2.500 8c0 1.100 2.500 2 5.500 2s5.500-.9 5.500-2",
  reader:
    "M8 3.500C6.500 2.500 4.500 2.300 2.500 2.500v10c2-.2 4 0 5.500 1 1.500-1 3.500-1.200 5.500-1v-10c-2-.2-4 0-5.500 1M8 3.500v10",
  writer: "M10.500 2.500l3 3-8 8H2.500v-3z",
  leader: "M8 2v3M8 11v3M2 8h3M11 8h3M8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4",
  spark: "M9 1.500 3.500 9H8l-1 5.500L12.500 7H8z",
  store: "M2.500 5 8 2l5.500 3v6L8 14l-5.500-3zM2.500 5 8 8l5.500-3M8 8v6",
  lake: "M2 6c1.500-1.300 2.500-1.300 4 0s2.500 1.300 4 0 2.500-1.300 4 0M2 10c1.500-1.300 2.500-1.300 4 0s2.500 1.300 4 0 2.500-1.300 4 0",
  person:
    "M8 7.500a2.700 2.700 0 1 0 0-5.400 2.700 2.700 0 0 0 0 5.400M2.800 14c.5-3 2.500-4.500 5.200-4.500s4.700 1.500 5.200 4.500",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12M8 4.500V8l2.500 1.500",
};

const SHAPES = {
  waiting: html`<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="2.600 2.600" />`,
  snapshot: html`<circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="2" /><path d="M8 4a4 4 0 0 1 0 8z" fill="currentColor" />`,
  "catch-up": html`<path d="M2 3.500 7.500 8 2 12.500zM8.500 3.500 14 8l-5.500 4.500z" fill="currentColor" />`,
  live: html`<circle cx="8" cy="8" r="6" fill="currentColor" />`,
  paused: html`<path d="M4 3h3v10H4zM9 3h3v10H9z" fill="currentColor" />`,
  quarantined: html`<path d="M8 1.500 15 14H1zM7.200 6v4h1.600V6zm0 5.200v1.600h1.600v-1.600z" fill="currentColor" fill-rule="evenodd" />`,
  dropped: html`<path d="M3 8h10" stroke="currentColor" stroke-width="2.600" stroke-linecap="round" />`,
  stopped: html`<path d="M3.500 3.500h9v9h-9z" fill="currentColor" />`,
};

export const Icon = ({ name, size = 16, label }) => html`
  <svg class="icon" viewBox="0 0 16 16" width=${size} height=${size} fill="none" stroke="currentColor" stroke-width=${name === "more" ? 2.4 : 1.5}
    stroke-linecap="round" stroke-linejoin="round" role=${label ? "img" : undefined} aria-label=${label} aria-hidden=${label ? undefined : "true"}>
    <path d=${LINES[name]} />
  </svg>`;

export const Shape = ({ name, size = 12 }) => html`
  <svg viewBox="0 0 16 16" width=${size} height=${size} aria-hidden="true">${SHAPES[name] ?? SHAPES.waiting}</svg>`;
