// The frame around all views: who is logged in, the bar on top, and which view the address names.
import { get, hasToken, onRefused, setToken } from "./api.js";
import { forgetDrafts } from "./drafts.js";
import { toHeading, useRoute } from "./hooks.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";
import { may } from "./operations.js";
import { Button, Empty, Failure } from "./parts/basics.js";
import { Toasts } from "./parts/dialog.js";
import { followVersion } from "./version.js";
import { Access } from "./views/access.js";
import { Create } from "./views/create.js";
import { Login } from "./views/login.js";
import { Overview } from "./views/overview.js";
import { Pipeline } from "./views/pipeline.js";
import { Services } from "./views/services.js";

const TITLES = { "": "Pipelines", new: "New pipeline", services: "Services", access: "Access" };

function App() {
  const [session, setSession] = useState({ state: "asking" });
  const route = useRoute();
  const ask = () =>
    get("/v1/me").then(
      (me) => setSession({ state: "in", me }),
      (error) => setSession(error.status === 401 ? { state: "out" } : { state: "failed", error }),
    );
  useEffect(() => {
    ask();
    return onRefused((problem) => setSession((before) => (before.state === "in" ? { state: "out", problem } : before)));
  }, []);
  if (session.state === "out")
    return html`<${Login} problem=${session.problem} onDone=${(me) => {
      setSession({ state: "in", me });
      toHeading();
    }} />`;
  const leave = () => {
    setToken(null);
    forgetDrafts();
    setSession({ state: "out" });
  };
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.querySelector("#main h1")?.focus();
    }}>Skip to the content</a>
    <${Bar} me=${session.me} path=${route.path} leave=${leave} />
    <main class="page" id="main">
      ${session.state === "failed" ? html`<${Failure} error=${session.error} retry=${ask} />` : session.state === "in" ? html`<${Routed} me=${session.me} route=${route} />` : html`<p class="quiet">Loading …</p>`}
    </main>
    <${Toasts} />`;
}

function Bar({ me, path, leave }) {
  const current = path[0] === "pipelines" || path[0] === "new" ? "" : (path[0] ?? "");
  const items = [
    ["", "Pipelines", "#/"],
    ["services", "Services", "#/services"],
    ...(me && may(me, "admin") ? [["access", "Access", "#/access"]] : []),
  ];
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const toggle = () => {
    window.cutlineTheme.toggle();
    setTheme(document.documentElement.dataset.theme);
  };
  return html`
    <header class="topbar">
      <a class="brand" href="#/" aria-label="Cutline, all pipelines"><svg class="brand-mark" viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke-linecap="round" stroke-width="3"><path class="mark-source" d="M4 9h9M4 16h6.200M4 23h3.500" /><path class="mark-lake" d="M21.500 9H28M18.700 16H28M16 23h12" /><path class="mark-cut" d="M19.500 4 11 28" /></svg><span>Cutline</span></a>
      <nav class="topnav" aria-label="Main">${items.map(([id, text, href]) => html`<a key=${id} href=${href} aria-current=${id === current ? "page" : undefined}>${text}</a>`)}</nav>
      <div class="topbar-end">
        ${me && html`<span class="who" title=${`${me.name}, ${me.role}`}><${Icon} name="person" /><span class="name">${me.name} · ${me.role}</span></span>`}
        <${Button} kind="plain" icon=${theme === "dark" ? "sun" : "moon"} label=${theme === "dark" ? "Light colours" : "Dark colours"} onClick=${toggle} />
        ${me && hasToken() && html`<${Button} kind="plain" icon="out" label="Log out" onClick=${leave} />`}
      </div>
    </header>`;
}

function Routed({ me, route }) {
  const { path } = route;
  const view = path[0] ?? "";
  const page = view === "pipelines" ? path.slice(0, 3).join("/") : view;
  const before = useRef(page);
  useEffect(() => {
    if (view !== "pipelines") document.title = `${TITLES[view] ?? "Not found"} · Cutline`;
    if (before.current !== page) {
      before.current = page;
      scrollTo(0, 0);
      toHeading();
    }
  }, [page]);
  if (view === "") return html`<${Overview} me=${me} />`;
  if (view === "new") return html`<${Create} me=${me} />`;
  if (view === "services") return html`<${Services} me=${me} />`;
  if (view === "access") return html`<${Access} me=${me} path=${path} />`;
  if (view === "pipelines" && path[1]) return html`<${Pipeline} key=${path[1]} me=${me} path=${path} />`;
  return html`<section class="card"><${Empty} title="No such page" actions=${html`<a class="button" href="#/">All pipelines</a>`}>The address names no view.<//></section>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
followVersion();
