// "What did the lake show at 14:05?": the publication that holds a time or a GTID, and what it shows of each table.
import { get, pipelinePath } from "../api.js";
import { ago, count, moment, now, position, span } from "../format.js";
import { html, useState } from "../html.js";
import { Button, Card, Empty, Failure, Loading, Notice, Segments, sentence } from "../parts/basics.js";
import { TextField } from "../parts/fields.js";
import { usePoll } from "../hooks.js";
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
  const found = usePoll((signal) => get(pipelinePath(pipeline.name, `/cuts?${asked}`), { signal }), 0, `cuts ${pipeline.name} ${asked}`);
  const submit = (event) => {
    event.preventDefault();
    setAsked(by === "time" ? `at=${encodeURIComponent(new Date(at).toISOString())}` : `gtid=${encodeURIComponent(gtid.trim())}`);
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
          ${by === "time" ? html`<${TextField} label="Time" type="datetime-local" step="1" value=${at} onInput=${setAt} required />` : html`<${TextField} label="GTID" placeholder="3e11fa47-71ca-11e1-9e33-c80aa9429562:23 or 0-1-99" value=${gtid} onInput=${setGtid} required />`}
          <${Button} kind="primary" type="submit" icon="search">Show the cut<//>
        </form>
        <div class="row quick"><span class="small quiet">or</span>${[["a minute ago", 60], ["ten minutes ago", 600], ["an hour ago", 3600]].map(([text, seconds]) => html`<${Button} key=${text} size="small" kind="plain" onClick=${() => back(seconds)}>${text}<//>`)}</div>
      <//>
      ${found.error ? html`<${Failure} error=${found.error} />` : found.data ? html`<${Answer} answer=${found.data} by=${asked.startsWith("gtid") ? "gtid" : "time"} />` : html`<${Loading} what="the cut" />`}
    </div>`;
}

function Answer({ answer, by }) {
  const [shown, holds] = [cutOf(answer.shown), cutOf(answer.holds)];
  const first = by === "gtid" ? holds : shown;
  const other = by === "gtid" ? null : holds;
  return html`
    ${first ? html`<${Cut} cut=${first} />` : html`<section class="card"><${Empty} title=${by === "gtid" ? "No publication has that GTID yet" : "The lake showed nothing then"}>${by === "gtid" ? "It may be on its way: look at the lag." : "No publication had been made, or it is older than what is kept."}<//></section>`}
    ${by === "time" && html`<${Notice} icon="clock" title=${other ? `Publication ${count(other.number)} is the first with every change up to that time` : "No publication has every change up to that time yet"}>${other ? html`<p>It was published ${moment(other.publishedAt)} and shows the source as of ${moment(other.sourceTime)}.</p>` : null}<//>`}`;
}

function Cut({ cut }) {
  return html`
    <section class="card" aria-label=${`Publication ${cut.number}`}>
      <div class="cut-head"><span class="cut-number number">${count(cut.number)}</span>
        <div><h2>Publication ${count(cut.number)}: the source as of ${moment(cut.sourceTime)}</h2><p class="soft">Published ${moment(cut.publishedAt)}${cut.sourceTime ? `, ${span(cut.publishedAt - cut.sourceTime)} after the source's commit` : ""}; ${ago(cut.publishedAt)}.</p>
          <p class="small mono quiet cut-position">${position(cut.position)}${cut.position?.gtids ? html`<br />${cut.position.gtids}` : null}</p></div></div>
      ${cut.tables.length ? html`<div class="scroll-x" tabindex="0" role="region" aria-label="What it shows of each table"><table class="list">
        <thead><tr><th>Table</th><th>Shows</th><th>Read it with</th></tr></thead>
        <tbody>${cut.tables.map((table) => html`<tr key=${table.name}><td class="strong">${table.name}</td><td class="soft">${table.text}${table.cause && html`<div class="small cause">${sentence(table.cause)}</div>`}</td><td class="mono small soft">${table.snapshot ? `VERSION AS OF ${table.snapshot}` : "–"}</td></tr>`)}</tbody>
      </table></div>` : html`<p class="card-body quiet">No table was live yet.</p>`}
    </section>`;
}
