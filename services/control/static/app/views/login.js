// Logging in: a token, kept in this tab only.
import { get, setToken } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Button, Failure, Notice, sentence } from "../parts/basics.js";
import { TextField } from "../parts/fields.js";

/** `problem`: why the API no longer takes the token of this session. */
export function Login({ problem, onDone }) {
  const [token, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => document.querySelector(".login input")?.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    if (busy || !token.trim()) return;
    setBusy(true);
    setToken(token.trim());
    try {
      onDone(await get("/v1/me"));
    } catch (failed) {
      setToken(null);
      setError(failed);
      setBusy(false);
    }
  };
  return html`
    <main class="login" id="main">
      <form class="card login-card" onSubmit=${submit}>
        <svg class="brand-mark" viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke-linecap="round" stroke-width="3"><path class="mark-source" d="M4 9h9M4 16h6.200M4 23h3.500" /><path class="mark-lake" d="M21.500 9H28M18.700 16H28M16 23h12" /><path class="mark-cut" d="M19.500 4 11 28" /></svg>
        <div><h1 tabindex="-1">Log in to Cutline</h1><p class="soft">With a token that an admin made for you. It stays in this tab and is forgotten when you close it.</p></div>
        ${problem && !error && html`<${Notice} tone="warn" icon="key" title="Your session has ended"><p>${sentence(problem.message)} Log in again to go on where you were.</p><//>`}
        <${TextField} label="Token" type="password" autocomplete="current-password" placeholder="cutline_…" value=${token} onInput=${setText} error=${error?.status === 401 ? { detail: error.message, remedy: error.remedy } : null} />
        ${error && error.status !== 401 && html`<${Failure} error=${error} />`}
        <${Button} type="submit" kind="primary" busy=${busy} reason=${token.trim() ? null : "type the token first"} onClick=${() => {}}>Log in<//>
        <p class="small quiet">The first start of the control service prints an admin token once, in its log. From then on admins make tokens under Access.</p>
      </form>
    </main>`;
}
