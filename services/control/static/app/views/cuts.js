// "What did the lake show at 14:05?": the publication that holds a time or a GTID, and what it shows of each table.
import { get, pipelinePath } from "../api.js";
import { ago, label, moment, now, position, span, zone } from "../format.js";
import { link, usePoll, useWidth } from "../hooks.js";
import { html, useRef, useState } from "../html.js";
import { Button, because, Card, Empty, Failure, Loading, Notice, Search, Segments, sentence } from "../parts/basics.js";
import { TextField } from "../parts/fields.js";
import { VirtualTable } from "../parts/virtual.js";
import { cutOf } from "../shapes.js";

const local = (seconds) => {
  const at = new Date(seconds * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
};

export function Cuts({ pipeline }) {
  const [by, setBy] = useState("time");
  const [at, setAt] = useState(() => local(now() - 60));
  const [gtid, setGtid] = useState("");
  const [asked, setAsked] = useState(() => `at=${encodeURIComponent(new Date((now() - 60) * 1000).toISOString())}`);
  const found = usePoll(
    (signal) => get(pipelinePath(pipeline.name, `/cuts?${asked}`), { signal }),
    0,
    `cuts ${pipeline.name} ${asked}`,
  );
  const submit = (event) => {
    event.preventDefault();
    setAsked(
      by === "time"
        ? `at=${encodeURIComponent(new Date(at).toISOString())}`
        : `gtid=${encodeURIComponent(gtid.trim())}`,
    );
  };
  const back = (seconds) => {
    setBy("time");
    setAt(local(now() - seconds));
    setAsked(`at=${encodeURIComponent(new Date((now() - seconds) * 1000).toISOString())}`);
  };
  return html`
    <div class="stack">
      <${Card} title="What did the lake show?">
        <form class="cut-form" onSubmit=${submit}>
          <${Segments} label="Find by" value=${by} onChange=${setBy} options=${[["time", "at a time"], ["gtid", "holding a GTID"]]} />
          ${by === "time" ? html`<${TextField} label="Time" hint=${zone()} type="datetime-local" step="1" value=${at} onInput=${setAt} required />` : html`<${TextField} label="GTID" placeholder="3e11fa47-71ca-11e1-9e33-c80aa9429562:23 or 0-1-99" value=${gtid} onInput=${setGtid} required />`}
          <${Button} kind="primary" type="submit" icon="search">Show the cut<//>
        </form>
        <div class="row quick"><span class="small quiet">or</span>${[
          ["a minute ago", 60],
          ["ten minutes ago", 600],
          ["an hour ago", 3600],
        ].map(
          ([text, seconds]) => html`<${Button} key=${text} size="small" onClick=${() => back(seconds)}>${text}<//>`,
        )}</div>
      <//>
      ${found.error ? html`<${Failure} error=${found.error} />` : found.data ? html`<${Answer} pipeline=${pipeline} answer=${found.data} by=${asked.startsWith("gtid") ? "gtid" : "time"} />` : html`<${Loading} what="the cut" />`}
    </div>`;
}

function Answer({ pipeline, answer, by }) {
  const [shown, holds] = [cutOf(answer.shown), cutOf(answer.holds)];
  const first = by === "gtid" ? holds : shown;
  const other = by === "gtid" ? null : holds;
  return html`
    ${first ? html`<${Cut} pipeline=${pipeline} cut=${first} />` : html`<section class="card"><${Empty} title=${by === "gtid" ? "No publication has that GTID yet" : "The lake showed nothing then"}>${by === "gtid" ? "It may be on its way: look at the lag." : "No publication had been made, or it is older than what is kept."}<//></section>`}
    ${by === "time" && html`<${Notice} icon="clock" title=${other ? `Publication ${label(other.number)} is the first with every change up to that time` : "No publication has every change up to that time yet"}>${other ? html`<p>It was published ${moment(other.publishedAt)} and shows the source as of ${moment(other.sourceTime)}.</p>` : null}<//>`}`;
}

const WIDE = [
  { id: "table", title: "Table", width: "minmax(0, 1.1fr)" },
  { id: "shows", title: "Shows", width: "minmax(0, 1fr)" },
  { id: "version", title: "Read it with", width: "minmax(0, 1.2fr)" },
];
const NARROW = [
  { id: "table", title: "Table", width: "minmax(0, 1fr)" },
  { id: "version", title: "Read it with", width: "150px" },
];
const MANY = 12;

function Cut({ pipeline, cut }) {
  const ref = useRef(null);
  const [text, setText] = useState("");
  const width = useWidth(ref);
  const narrow = width > 0 && width < 720;
  const tables = cut.tables.filter((table) => table.name.toLowerCase().includes(text.trim().toLowerCase()));
  const cells = (table) => {
    const shows = html`<div class="cut-off soft ${narrow ? "small" : ""}">${table.text}</div>${table.cause && html`<div class="small cause cut-off" title=${because(table)}>${sentence(table.cause)}</div>`}`;
    const name = html`<a class="cell-link" href=${link("pipelines", pipeline.name, "tables", table.name)} title=${table.name}>${table.name}</a>`;
    const version = table.snapshot
      ? html`<span class="mono small soft">VERSION AS OF ${narrow && html`<br />`}${table.snapshot}</span>`
      : html`<span class="quiet">–</span>`;
    return narrow ? [html`${name}${shows}`, version] : [name, shows, version];
  };
  return html`
    <section class="card" ref=${ref} aria-label=${`Publication ${cut.number}`}>
      <div class="cut-head"><span class="cut-number number">${label(cut.number)}</span>
        <div><h2>Publication ${label(cut.number)}: the source as of ${moment(cut.sourceTime)}</h2><p class="soft">Published ${moment(cut.publishedAt)}${cut.sourceTime ? `, ${span(cut.publishedAt - cut.sourceTime)} after the source's commit` : ""}; ${ago(cut.publishedAt)}. <a href=${link("pipelines", pipeline.name, "checkpoints", cut.number)}>Its checkpoint</a></p>
          <p class="small mono quiet cut-position">${position(cut.position)}${cut.position?.gtids ? html`<br />${cut.position.gtids}` : null}</p></div></div>
      ${
        cut.tables.length
          ? html`<div role="region" aria-label="What it shows of each table">
        ${cut.tables.length > MANY && html`<div class="cut-find"><${Search} label="Find a table" value=${text} onInput=${setText} /></div>`}
        <${VirtualTable} label="Tables of the cut" items=${tables} columns=${narrow ? NARROW : WIDE} row=${cells} keyOf=${(table) => table.name} height=${narrow ? 62 : 44} most=${640} />
      </div>`
          : html`<p class="card-body quiet">No table was live yet.</p>`
      }
    </section>`;
}
