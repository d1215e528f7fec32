// Access: who you are, users, groups, rights, and what administrators have done.
import { html, useState } from "../view.js";
import { all, get, path, patch, post, remove } from "../api.js";
import { isRaw, shown } from "../exact.js";
import { count, many, moment } from "../format.js";
import { Button, Check, Choice, Dialog, Empty, Facts, Field, Head, Line, Loading, Note, Panel, Refusal, Table, Tabs, Tag, TypeName, tell, useDoing, useLoaded } from "../parts.js";
import { to } from "../router.js";
import { Lacks, may } from "../session.js";
import { storeNames } from "../stores.js";

const RIGHTS = {
  realm: ["manage_acl", "full", "access", "configure", "channels", "realm", "admin", "monitor"],
  channel: ["manage_acl", "full", "purge", "subscribe", "publish", "durable"],
  queue: ["manage_acl", "full", "purge", "peek", "push", "pop"],
};

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

function Password({ title, route, onClose }) {
  const [password, setPassword] = useState("");
  const doing = useDoing();
  const save = async () => { const done = await doing.act(() => post(route, { password })); if (done) { tell("The password is changed."); onClose(); } };
  return html`<${Dialog} title=${title} onClose=${onClose} onSubmit=${save} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}><button type="submit" class="button first" disabled=${!password || doing.busy}>Change password</button>`}>
    <${Field} label="New password" type="password" value=${password} onInput=${setPassword} autocomplete="new-password" autofocus /><${Refusal} error=${doing.error} /></${Dialog}>`;
}

function Me({ me }) {
  const [changing, setChanging] = useState(false);
  return html`<${Panel} title="Your account" acts=${me.user && me.user !== "anonymous" && html`<${Button} onClick=${() => setChanging(true)}>Change password…</${Button}>`}>
    <${Facts} rows=${[["Name", html`<code>${me.name}</code>`], ["Groups", me.groups.join(", ") || "none"], ["Rights on the realm", me.rights.length ? me.rights.map((right) => html`<${Tag} key=${right}>${right}</${Tag}> `) : "none"], ["Sign-in", { optional: "optional; without it, clients have the rights of anonymous", mandatory: "required", off: "off" }[me.mode]]]} />
    ${changing && html`<${Password} title="Change your password" route="/me/password" onClose=${() => setChanging(false)} />`}</${Panel}>`;
}

function NewUser({ onClose, onDone }) {
  const [given, setGiven] = useState({ name: "", password: "" });
  const [made, setMade] = useState(null);
  const doing = useDoing();
  const create = async () => {
    const answer = await doing.act(() => post("/users", { name: given.name.trim(), ...(given.password ? { password: given.password } : {}) }));
    if (answer) { onDone(); if (answer.password) setMade(answer); else { tell(`User ${answer.name} was created.`); onClose(); } }
  };
  if (made) {
    return html`<${Dialog} title="Password of ${made.name}" onClose=${onClose} foot=${html`<${Button} kind="first" onClick=${onClose}>I have saved it</${Button}>`}>
      <${Note} kind="warn" title="It is shown only once.">The realm does not store it in a readable form.</${Note}><${Line} text=${made.password} /></${Dialog}>`;
  }
  return html`<${Dialog} title="New user" onClose=${onClose} onSubmit=${create} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}><button type="submit" class="button first" disabled=${!given.name.trim() || doing.busy}>Create user</button>`}>
    <div class="form"><${Field} label="Name" mono value=${given.name} onInput=${(name) => setGiven({ ...given, name })} autofocus />
    <${Field} label="Password" type="password" value=${given.password} onInput=${(password) => setGiven({ ...given, password })} autocomplete="new-password" help="If empty, a password is generated and shown once." /></div><${Refusal} error=${doing.error} /></${Dialog}>`;
}

function Users() {
  const loaded = useLoaded((signal) => all("/users", {}, signal), []);
  const [asked, setAsked] = useState(null);
  const doing = useDoing(), rows = loaded.value;
  const destroy = async () => { const done = await doing.act(async () => { await remove(path("users", asked.user)); return true; }); if (done) { tell(`User ${asked.user} is removed.`); setAsked(null); loaded.again(); } };
  return html`<${Panel} title="Users" acts=${html`<${Button} kind="first" icon="plus" onClick=${() => setAsked({ what: "new" })}>New user</${Button}>`} bare>
    ${loaded.error && html`<div class="panel-body"><${Refusal} error=${loaded.error} /></div>`}
    ${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} label="Users" rows=${rows} keyOf=${(row) => row.name} columns=${[
      { label: "Name", kind: "lead", cell: (row) => html`<span class="mono">${row.name}</span>` }, { label: "Groups", cell: (row) => row.groups.join(", ") || "none" },
      { label: "Password", cell: (row) => (row.has_password ? "yes" : "token or certificate only") },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<${Button} kind="small" onClick=${() => setAsked({ what: "password", user: row.name })} label="Change the password of ${row.name}">Password…</${Button}> <${Button} kind="small danger" onClick=${() => setAsked({ what: "remove", user: row.name })} label="Remove user ${row.name}">Remove…</${Button}>` },
    ]} />` : html`<${Empty} title="No users yet" shell="penstock user create alice" />`}
    ${asked?.what === "new" && html`<${NewUser} onClose=${() => setAsked(null)} onDone=${loaded.again} />`}
    ${asked?.what === "password" && html`<${Password} title="Password of ${asked.user}" route=${path("users", asked.user, "password")} onClose=${() => setAsked(null)} />`}
    ${asked?.what === "remove" && html`<${TypeName} title="Remove user ${asked.user}" name=${asked.user} verb="Remove" doing=${doing} onDone=${destroy} onClose=${() => setAsked(null)}><${Note} kind="warn" title="This takes effect at once.">Open sessions of ${asked.user} end.</${Note}></${TypeName}>`}</${Panel}>`;
}

function GroupDialog({ group, onClose, onDone }) {
  const [name, setName] = useState(group?.name ?? "");
  const [members, setMembers] = useState((group?.members ?? []).join(" "));
  const doing = useDoing();
  const save = async () => {
    const wanted = words(members);
    const done = await doing.act(() => (group
      ? patch(path("groups", group.name), { add: wanted.filter((each) => !group.members.includes(each)), remove: group.members.filter((each) => !wanted.includes(each)) })
      : post("/groups", { name: name.trim(), members: wanted })));
    if (done) { tell(`Group ${done.name} has ${many(done.members.length, "member")}.`); onDone(); onClose(); }
  };
  return html`<${Dialog} title=${group ? `Group ${group.name}` : "New group"} onClose=${onClose} onSubmit=${save} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}><button type="submit" class="button first" disabled=${!name.trim() || doing.busy}>Save</button>`}>
    <div class="form">${!group && html`<${Field} label="Name" mono value=${name} onInput=${setName} autofocus />`}<${Field} label="Members" mono rows=${3} value=${members} onInput=${setMembers} help="Names of users, separated by spaces." /></div><${Refusal} error=${doing.error} /></${Dialog}>`;
}

function Groups() {
  const loaded = useLoaded((signal) => all("/groups", {}, signal), []);
  const [asked, setAsked] = useState(null);
  const doing = useDoing(), rows = loaded.value;
  const destroy = async () => { const done = await doing.act(async () => { await remove(path("groups", asked.group.name)); return true; }); if (done) { tell(`Group ${asked.group.name} is removed.`); setAsked(null); loaded.again(); } };
  return html`<${Panel} title="Groups" acts=${html`<${Button} kind="first" icon="plus" onClick=${() => setAsked({ what: "edit" })}>New group</${Button}>`} bare>
    ${loaded.error && html`<div class="panel-body"><${Refusal} error=${loaded.error} /></div>`}
    ${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} label="Groups" rows=${rows} keyOf=${(row) => row.name} columns=${[
      { label: "Name", kind: "lead", cell: (row) => html`<span class="mono">${row.name}</span>` }, { label: "Members", cell: (row) => row.members.join(", ") || "none" },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<${Button} kind="small" onClick=${() => setAsked({ what: "edit", group: row })} label="Change the members of ${row.name}">Members…</${Button}> <${Button} kind="small danger" onClick=${() => setAsked({ what: "remove", group: row })} label="Remove group ${row.name}">Remove…</${Button}>` },
    ]} />` : html`<${Empty} title="No groups yet" shell="penstock group create ops">Rights granted to <code>group:ops</code> apply to all its members.</${Empty}>`}
    ${asked?.what === "edit" && html`<${GroupDialog} group=${asked.group} onClose=${() => setAsked(null)} onDone=${loaded.again} />`}
    ${asked?.what === "remove" && html`<${TypeName} title="Remove group ${asked.group.name}" name=${asked.group.name} verb="Remove" doing=${doing} onDone=${destroy} onClose=${() => setAsked(null)}><${Note} kind="warn" title="This takes effect at once.">Its members lose the rights of the group.</${Note}></${TypeName}>`}</${Panel}>`;
}

function GrantDialog({ resource, entry, onClose, onDone }) {
  const [subject, setSubject] = useState(entry?.subject ?? "");
  const [rights, setRights] = useState(entry?.rights ?? []);
  const doing = useDoing();
  const save = async () => {
    const gone = (entry?.rights ?? []).filter((right) => !rights.includes(right)), more = rights.filter((right) => !entry?.rights.includes(right));
    const body = { kind: resource.kind, name: resource.kind === "realm" ? "" : resource.name, subject: subject.trim() };
    const done = await doing.act(async () => {
      if (more.length) await post("/acl/grant", { ...body, rights: more });
      if (gone.length) await post("/acl/revoke", { ...body, rights: gone });
      return true;
    });
    if (done) { tell(`${subject} now has ${rights.join(", ") || "no rights here"}.`); onDone(); onClose(); }
  };
  return html`<${Dialog} title=${entry ? `Rights of ${entry.subject}` : "Grant rights"} onClose=${onClose} onSubmit=${save} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}><button type="submit" class="button first" disabled=${!subject.trim() || doing.busy || (!entry && !rights.length)}>Save</button>`}>
    ${!entry && html`<${Field} label="Subject" mono value=${subject} onInput=${setSubject} help="user@host, user@*, *@host, *@* or group:name" placeholder="alice@*" autofocus />`}
    <fieldset><legend>Rights on ${resource.kind === "realm" ? "the realm" : `${resource.kind} ${resource.name}`}</legend>${RIGHTS[resource.kind].map((right) => html`<div key=${right}><${Check} label=${right} checked=${rights.includes(right)}
      onInput=${(on) => setRights(on ? [...rights, right] : rights.filter((each) => each !== right))} /></div>`)}</fieldset><${Refusal} error=${doing.error} /></${Dialog}>`;
}

function Acl() {
  const [kind, setKind] = useState(may("manage_acl", "monitor") ? "realm" : "channel");
  const [typed, setTyped] = useState("");
  const [name, setName] = useState("");
  const [asked, setAsked] = useState(null);
  const ready = kind === "realm" || name;
  const loaded = useLoaded((signal) => (ready ? get("/acl", { kind, name: kind === "realm" ? "" : name }, signal) : Promise.resolve(null)), [kind, name]);
  const rows = loaded.value?.items, resource = { kind, name };
  return html`<div class="stack"><form class="find" onSubmit=${(event) => { event.preventDefault(); setName(typed.trim()); }}><${Choice} label="Rights on" value=${kind} onPick=${setKind} options=${[["realm", "Realm", may("manage_acl", "monitor")], ["channel", "Channel"], ["queue", "Queue"]]} />
      ${kind !== "realm" && html`<div class="grow"><${Field} label="Name of the ${kind}" mono value=${typed} onInput=${setTyped} list="acl-stores" placeholder="orders, or orders/* for all below" /><datalist id="acl-stores">${storeNames().slice(0, 500).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist></div><button type="submit" class="button first">Show</button>`}</form>
    <${Panel} title=${kind === "realm" ? "Rights on the realm" : `Rights on ${name || `a ${kind}`}`} acts=${ready && html`<${Button} kind="first" icon="plus" onClick=${() => setAsked({})}>Grant</${Button}>`} bare>
    ${loaded.error && html`<div class="panel-body"><${Refusal} error=${loaded.error} /></div>`}
    ${!ready ? html`<${Empty} title="Name a ${kind}" />` : !rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} label="Rights" rows=${rows} keyOf=${(row) => row.subject} columns=${[
      { label: "Subject", kind: "lead", cell: (row) => html`<span class="mono">${row.subject}</span>` }, { label: "Rights", cell: (row) => row.rights.map((right) => html`<${Tag} key=${right}>${right}</${Tag}> `) },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<${Button} kind="small" onClick=${() => setAsked(row)} label="Change the rights of ${row.subject}">Change…</${Button}>` },
    ]} />` : html`<${Empty} title="No rights are granted here" shell="penstock acl grant ${kind}${kind === "realm" ? "" : ` ${name}`} alice@* ${RIGHTS[kind][3]}">A request without the necessary right is refused with access-denied, which names the right.</${Empty}>`}
    ${asked && html`<${GrantDialog} resource=${resource} entry=${asked.subject ? asked : null} onClose=${() => setAsked(null)} onDone=${loaded.again} />`}</${Panel}></div>`;
}

/** A value of an audit entry as words: lists with commas, objects with semicolons. */
function fact(value) {
  if (value === null || value === "") return "–";
  if (Array.isArray(value)) return value.map(fact).join(", ") || "–";
  return typeof value === "object" && !isRaw(value) ? Object.entries(value).map(([name, inner]) => `${name}: ${fact(inner)}`).join("; ") || "–" : shown(value);
}

function Audit() {
  const [steps, setSteps] = useState([undefined]);
  const loaded = useLoaded((signal) => get("/audit", { limit: 100, after: steps.at(-1) }, signal), [steps]), page = loaded.value;
  return html`<${Panel} title="Audit" hint="acts of administrators, newest first" acts=${html`<${Button} kind="small plain" icon="again" onClick=${loaded.again}>Refresh</${Button}>`} bare>
    ${loaded.error && html`<div class="panel-body"><${Refusal} error=${loaded.error} /></div>`}
    ${!page ? !loaded.error && html`<${Loading} />` : page.items.length ? html`<${Table} label="Audit log" rows=${page.items} keyOf=${(row) => row.number} columns=${[
      { label: "When", kind: "lead tight", cell: (row) => moment(row.at) }, { label: "Who", kind: "words", cell: (row) => html`<span class="mono">${row.principal}</span>` }, { label: "What", kind: "words", cell: (row) => html`<span class="mono">${row.operation}</span>` },
      { label: "On", cell: (row) => row.target || "–" }, { label: "Outcome", cell: (row) => (row.outcome === "done" ? html`<${Tag} kind="ok" icon="check">done</${Tag}>` : html`<${Tag} kind="bad" icon="error">${row.outcome}</${Tag}>`) },
      { label: "Detail", cell: (row) => { const facts = Object.entries(row.detail); return facts.length ? html`<${Facts} rows=${facts.map(([name, value]) => [name.replaceAll("_", " "), fact(value)])} />` : "–"; } },
    ]} />` : html`<${Empty} title="No acts yet">Acts of administration are recorded here, including refused ones.</${Empty}>`}
    ${page && html`<div class="pager"><span>${count(page.items.length)} shown</span><span class="fill"></span><${Button} kind="small" icon="left" disabled=${steps.length < 2} onClick=${() => setSteps(steps.slice(0, -1))}>Newer</${Button}><${Button} kind="small" disabled=${!page.next} onClick=${() => setSteps([...steps, page.next])}>Older</${Button}></div>`}</${Panel}>`;
}

const TABS = [["me", "You"], ["users", "Users", "manage_acl"], ["groups", "Groups", "manage_acl"], ["rights", "Rights"], ["audit", "Audit", "monitor", "admin"]];

export function AccessPage({ tab, me }) {
  const shown = TABS.filter(([key, , ...rights]) => key === tab || !rights.length || may(...rights)), lacking = TABS.find(([key, , ...rights]) => key === tab && rights.length && !may(...rights));
  const current = TABS.some(([key]) => key === tab) ? tab : "me";
  if (me.mode === "off") return html`<div class="page"><${Head} title="Access" /><${Panel} label="Access" bare><${Empty} title="Authentication is off" >All clients on this machine have all rights, and other machines cannot connect. Start the realm with authentication to use users, groups and rights.</${Empty}></${Panel}></div>`;
  return html`<div class="page"><${Head} title="Access" lead="Users, groups and rights of this realm." /><${Tabs} label="Access" current=${current} items=${shown.map(([key, text]) => [key, text, to("access", key)])} />
    ${lacking ? html`<${Panel} label=${lacking[1]} bare><${Lacks} what=${lacking[1]} right=${lacking[2]} /></${Panel}>` : html`${current === "me" && html`<${Me} me=${me} />`}${current === "users" && html`<${Users} />`}${current === "groups" && html`<${Groups} />`}${current === "rights" && html`<${Acl} />`}${current === "audit" && html`<${Audit} />`}`}</div>`;
}
