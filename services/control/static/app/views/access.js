// Tokens and the audit log, for admins.
import { act, getAll, getPage } from "../api.js";
import { ago, label, moment, zone } from "../format.js";
import { usePoll } from "../hooks.js";
import { html, useState } from "../html.js";
import { may } from "../operations.js";
import { Badge, Button, Card, Empty, Failure, Notice, Polled, sentence, Tabs } from "../parts/basics.js";
import { Dialog } from "../parts/dialog.js";
import { byField, NumberField, SelectField, TextField } from "../parts/fields.js";

export function Access({ me, path }) {
  const tab = path[1] === "audit" ? "audit" : "tokens";
  const tabs = [
    { id: "tokens", text: "Tokens", href: "#/access" },
    { id: "audit", text: "Audit log", href: "#/access/audit" },
  ];
  return html`
    <div class="page-head"><div><h1 tabindex="-1">Access</h1><p>Who may do what, and who did.</p></div></div>
    ${
      may(me, "admin")
        ? html`<${Tabs} label="Access" tabs=${tabs} current=${tab} />${tab === "audit" ? html`<${Audit} />` : html`<${Tokens} me=${me} />`}`
        : html`<${Notice} tone="warn" icon="key" title="Only an admin sees this"><p>You are ${me?.role ?? "not logged in"}.</p><//>`
    }`;
}

function Tokens() {
  const found = usePoll((signal) => getAll("/v1/tokens", { signal }), 10, "tokens");
  const [asked, setAsked] = useState(null);
  return html`
    ${
      asked === "new" &&
      html`<${NewToken} onClose=${() => {
        setAsked(null);
        found.refresh();
      }} />`
    }
    ${
      asked?.id &&
      html`<${Revoke} token=${asked} onClose=${() => {
        setAsked(null);
        found.refresh();
      }} />`
    }
    <${Polled} of=${found} what="tokens">${(tokens) => html`
      <${Card} title="Tokens" body=${false} end=${html`<${Button} kind="primary" size="small" icon="plus" onClick=${() => setAsked("new")}>New token<//>`}>
        ${
          tokens.length === 0
            ? html`<${Empty} title="No tokens">The first start of the control service prints an admin token.<//>`
            : html`
        <div class="scroll-x" tabindex="0" role="region" aria-label="Tokens"><table class="list rows"><thead><tr><th>Name</th><th>Role</th><th>Made</th><th>Expires</th><th>State</th><th><span class="hidden">Operations</span></th></tr></thead>
          <tbody>${tokens.map(
            (
              token,
            ) => html`<tr key=${token.id}><td><b>${token.name}</b><div class="mono small quiet">${token.id}</div></td><td>${token.role}</td><td class="nowrap soft" title=${moment(token.at)}>${ago(token.at)}${token.by ? html`<div class="small quiet">by ${token.by}</div>` : null}</td><td class="nowrap soft" data-label="expires">${token.expires_at ? moment(token.expires_at) : "never"}</td>
            <td>${token.revoked_at ? html`<${Badge} tone="dropped" icon="minus">revoked<//>` : token.expires_at && token.expires_at < Date.now() / 1000 ? html`<${Badge} tone="paused" icon="clock">expired<//>` : html`<${Badge} tone="live" icon="check">valid<//>`}</td>
            <td>${!token.revoked_at && html`<${Button} size="small" icon="bin" onClick=${() => setAsked(token)}>Revoke<//>`}</td></tr>`,
          )}</tbody></table></div>`
        }
      <//>`}<//>`;
}

function NewToken({ onClose }) {
  const [draft, setDraft] = useState({ name: "", role: "viewer", expires_in_days: 90 });
  const [made, setMade] = useState(null);
  const [copied, setCopied] = useState(false);
  const [error, setError] = useState(null);
  const errors = byField(error);
  const make = async (event) => {
    event?.preventDefault();
    if (!draft.name) return;
    try {
      setMade(await act("POST", "/v1/tokens", draft));
    } catch (failed) {
      setError(failed);
    }
  };
  if (made)
    return html`<${Dialog} key="made" title="Copy the token now" icon="key" tone="live" firm onClose=${onClose} foot=${html`${navigator.clipboard && html`<${Button} icon=${copied ? "check" : "copy"} onClick=${() => navigator.clipboard.writeText(made.token).then(() => setCopied(true))}>${copied ? "Copied" : "Copy"}<//>`}<${Button} kind="primary" onClick=${onClose}>I have copied it<//>`}>
    <p class="soft">Only its hash is kept, so it can't be shown again.</p><pre class="code log" tabindex="0" aria-label="Token">${made.token}</pre><//>`;
  return html`<${Dialog} title="New token" icon="key" tone="snapshot" onClose=${onClose} foot=${html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" reason=${draft.name ? null : "Name is missing"} onClick=${make}>Make the token<//>`}>
    <form class="stack" onSubmit=${make}>
      <${TextField} label="Name" placeholder="grafana" hint="Who or what uses it; the audit log shows this name." value=${draft.name} error=${errors.name} onInput=${(name) => setDraft({ ...draft, name })} />
      <${SelectField} label="Role" value=${draft.role} error=${errors.role} options=${[["viewer", "viewer: reads"], ["operator", "operator: live operations too"], ["admin", "admin: definitions, tokens and audit too"]]} onInput=${(role) => setDraft({ ...draft, role })} />
      <${NumberField} label="Expires in days" optional min="1" hint="Empty: never." value=${draft.expires_in_days} error=${errors.expires_in_days} onInput=${(days) => setDraft({ ...draft, expires_in_days: days })} />
      <button type="submit" hidden></button>
    </form>${error && !error.errors.length && html`<${Failure} error=${error} />`}<//>`;
}

function Revoke({ token, onClose }) {
  const [error, setError] = useState(null);
  const revoke = () => act("DELETE", `/v1/tokens/${encodeURIComponent(token.id)}`).then(onClose, setError);
  return html`<${Dialog} title=${`Revoke the token ${token.name}`} icon="bin" tone="quarantined" onClose=${onClose} foot=${html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="danger" onClick=${revoke}>Revoke the token<//>`}>
    <p class="soft">Whoever uses it is refused from now on. This can't be undone; make a new one instead.</p>${error && html`<${Failure} error=${error} />`}<//>`;
}

function Audit() {
  const found = usePoll(() => getPage("/v1/audit?limit=100"), 5, "audit");
  const [more, setMore] = useState([]);
  const [next, setNext] = useState(undefined);
  const further = async () => {
    const page = await getPage(next === undefined ? found.data.next : next);
    setMore([...more, ...page.items]);
    setNext(page.next);
  };
  const good = (item) => item.status < 400;
  return html`<${Polled} of=${found} what="the audit log">${(page) => html`
    <${Card} title="Every call that changed something, or tried to" body=${false} end=${html`<span class="small quiet">times in ${zone()}</span>`}>
      ${
        page.items.length === 0
          ? html`<${Empty} title="Nothing yet">Each mutating call is listed here: who, what, from where, and its result.<//>`
          : html`
      <div class="scroll-x" tabindex="0" role="region" aria-label="Audit log"><table class="list rows"><thead><tr><th>When</th><th>Who</th><th>What</th><th>From</th><th>Result</th></tr></thead>
        <tbody>${[...page.items, ...more].map(
          (
            item,
          ) => html`<tr key=${item.request_id}><td class="nowrap" title=${ago(item.at)}>${moment(item.at)}</td><td><b>${item.by ?? "nobody"}</b><div class="small quiet">${item.role ?? ""}</div></td><td class="mono small">${item.method} ${item.path}${item.query && !item.query.includes("cursor=") ? `?${item.query}` : ""}</td><td class="mono small soft" data-label="from">${item.address}</td>
          <td><${Badge} tone=${good(item) ? "live" : "quarantined"} icon=${good(item) ? "check" : "cross"}>${label(item.status)}${item.count > 1 ? `, ${item.count} times` : ""}<//>${item.cause && html`<div class="small quiet">${sentence(item.cause)}</div>`}</td></tr>`,
        )}</tbody></table></div>
      ${(next === undefined ? page.next : next) && html`<p class="card-foot"><${Button} size="small" onClick=${further}>Older<//></p>`}`
      }
    <//>`}<//>`;
}
