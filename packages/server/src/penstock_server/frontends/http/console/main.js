// The console: who is there, the frame around the pages, and which page the address names.
import { html, render, useCallback, useEffect, useErrorBoundary, useRef, useState } from "./view.js";
import { get, post, useToken, whenLoggedOut } from "./api.js";
import { moment } from "./format.js";
import { Icon, Mark } from "./icons.js";
import { Button, Empty, Loading, Note, Refusal, Toasts, useRefreshed } from "./parts.js";
import { deny, follow, useLive } from "./live.js";
import { Keys } from "./keys.js";
import { Tree, openFirst } from "./tree.js";
import { LacksPage, entered, may } from "./session.js";
import { useStores } from "./stores.js";
import { to, useRoute } from "./router.js";
import { Login } from "./pages/login.js";
import { Overview } from "./pages/overview.js";
import { StorePage } from "./pages/store.js";
import { DurablePage } from "./pages/durable.js";
import { NewStore } from "./pages/create.js";
import { DeadPage } from "./pages/dead.js";
import { PatternsPage } from "./pages/patterns.js";
import { JoinsPage } from "./pages/joins.js";
import { ScheduledPage } from "./pages/scheduled.js";
import { PipelinesPage } from "./pages/pipelines.js";
import { ConnectionsPage } from "./pages/connections.js";
import { TopicsPage } from "./pages/topics.js";
import { ClusterPage } from "./pages/cluster.js";
import { AccessPage } from "./pages/access.js";

const PAGES = [
  ["", "overview", "Overview"], ["dead", "dead", "Dead events"], ["joins", "join", "Joins"], ["patterns", "durable", "Patterns"], ["scheduled", "schedule", "Scheduled"],
  ["pipelines", "pipeline", "Pipelines"], ["connections", "connection", "Connections"], ["topics", "topics", "Topics"], ["cluster", "system", "Cluster"], ["access", "access", "Access"],
];

/** Rights on the realm, any of which is enough; the others need none. */
const NEEDS = { joins: ["realm", "admin", "monitor"], pipelines: ["admin", "monitor"], connections: ["admin", "monitor"], cluster: ["admin", "monitor"] };

const seen = (key, me) => (key === "access" ? me.mode !== "off" : !NEEDS[key] || may(...NEEDS[key]));
/** Whether the page is among those at the side: that of topics is where there are some. */
const listed = (key, me, mqtt) => seen(key, me) && (key !== "topics" || Boolean(mqtt?.channel || mqtt?.channels.length));

const ME_MS = 15_000, MQTT_MS = 15_000;

const THEMES = { system: ["system", "Theme: as the system"], light: ["sun", "Theme: light"], dark: ["moon", "Theme: dark"] };

function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const turn = () => {
    const names = Object.keys(THEMES), next = names[(names.indexOf(theme) + 1) % names.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("penstock.theme", next); } catch { /* storage is off: until the page is left */ }
    setTheme(next);
  };
  return [theme, turn];
}

/** Without figures, the answers of the realm say whether it can be reached. */
const linkOf = (state, isAway, realm) => (state !== "denied" ? state : isAway ? "lost" : realm ? "denied" : "opening");
const LINK = { opening: ["", "Connecting"], live: ["ok", "Live"], lost: ["bad", "Not connected"], denied: ["ok", "Connected"] };

function Bar({ realm, isAway, me, onMenu, onKeys, onLogin, onLogout }) {
  const [theme, turnTheme] = useTheme();
  const { state } = useLive();
  const [kind, text] = LINK[linkOf(state, isAway, realm)];
  return html`<header class="bar">
    <button type="button" class="button plain icon menu-button" aria-label="Channels and pages" onClick=${onMenu}><${Icon} name="menu" /></button>
    <a class="brand" href=${to("")} aria-label="Penstock, overview"><${Mark} /><span class="word">Penstock</span></a>
    <div class="bar-realm"><b>${realm?.name ?? ""}</b></div><div class="bar-fill"></div>
    <div class="link-state" role="status"><i class="dot ${kind}"></i><span class="text">${text}</span></div>
    <div class="bar-tools">
      ${me.mode !== "off" && !me.csrf && html`<${Button} kind="plain" icon="person" onClick=${onLogin}>Log in</${Button}>`}
      ${me.mode !== "off" && me.csrf && html`<a class="button plain" href=${to("access", "me")} title="Your account"><${Icon} name="person" />${me.user}</a>
        <${Button} kind="plain icon" icon="out" label="Log out" onClick=${onLogout} />`}
      <${Button} kind="plain icon" icon=${THEMES[theme][0]} label=${THEMES[theme][1]} onClick=${turnTheme} />
      <${Button} kind="plain icon" icon="help" label="Keys" onClick=${onKeys} /></div></header>`;
}

/** What every page shows while the realm cannot be reached: its figures are no longer current. */
function Stale({ realm, isAway }) {
  const { state, rates } = useLive();
  if (linkOf(state, isAway, realm) !== "lost") return null;
  return html`<div class="stale"><${Note} kind="warn" role="status" title="Not connected.">${rates ? `The figures on this page are from ${moment(rates.at)}.` : "This page may be out of date."} The console keeps trying to connect.</${Note}></div>`;
}

function chosenOf([kind, name, tab, inner]) {
  if (kind !== "channel" && kind !== "queue") return null;
  return tab === "durables" && inner ? `${name}\n${inner}` : name;
}

function Side({ route, isOpen, onClose, me, mqtt, filterRef }) {
  const { stores, error } = useStores();
  const [filter, setFilter] = useState("");
  const tree = useRef(null);
  const page = ["channel", "queue"].includes(route.parts[0]) ? null : (route.parts[0] ?? "");
  const onKey = (event) => {
    if (event.key === "Escape") { setFilter(""); event.target.blur(); }
    else if (event.key === "ArrowDown") { event.preventDefault(); tree.current?.focus(); }
    else if (event.key === "Enter" && stores) { if (openFirst(stores, event.target.value)) { onClose(); event.target.blur(); } }
  };
  return html`<aside class="side ${isOpen ? "open" : ""}" aria-label="Pages and destinations">
    <nav class="side-nav" aria-label="Pages"><ul>${PAGES.filter(([key]) => listed(key, me, mqtt)).map(([key, icon, text]) => html`<li key=${key}>
      <a href=${to(key)} aria-current=${page === key ? "page" : undefined} onClick=${onClose}><${Icon} name=${icon} />${text}</a></li>`)}</ul></nav>
    <div class="side-head"><h2>Channels and queues</h2>
      ${may("channels") && html`<a class="button plain icon small" href=${to("new")} aria-label="New channel or queue" title="New channel or queue" onClick=${onClose}><${Icon} name="plus" size=${14} /></a>`}</div>
    <div class="side-filter"><${Icon} name="search" size=${14} /><input type="search" ref=${filterRef} value=${filter} placeholder="Filter by name" aria-label="Filter channels, queues and durables"
      autocomplete="off" spellcheck=${false} onInput=${(event) => setFilter(event.target.value)} onKeyDown=${onKey} />${!filter && html`<kbd>/</kbd>`}</div>
    ${error && html`<div class="panel-body"><${Refusal} error=${error} slim /></div>`}
    ${!stores && !error && html`<${Loading} />`}
    ${stores && stores.length === 0 && (may("channels") ? html`<div class="empty">No channels yet. <a href=${to("new")} onClick=${onClose}>Create a channel</a></div>`
      : html`<div class="empty">No channel or queue that you may see.</div>`)}
    ${stores && stores.length > 0 && html`<${Tree} stores=${stores} filter=${filter} chosen=${chosenOf(route.parts)} treeRef=${tree} onPicked=${onClose} />`}</aside>`;
}

function Page({ route, realm, me, mqtt }) {
  const [kind, name, tab, inner] = route.parts;
  const page = PAGES.find(([key]) => key === kind);
  if (page && kind !== "access" && !seen(kind, me)) return html`<${LacksPage} what=${page[2]} right=${NEEDS[kind].at(-1)} />`;
  switch (kind ?? "") {
    case "": return html`<${Overview} realm=${realm} />`;
    case "channel": case "queue":
      if (!name) break;
      if (kind === "channel" && tab === "durables" && inner) return html`<${DurablePage} key="${name}\n${inner}" channel=${name} name=${inner} tab=${route.parts[4] ?? ""} />`;
      return html`<${StorePage} key="${kind} ${name}" kind=${kind} name=${name} tab=${tab ?? ""} route=${route} />`;
    case "new": return html`<${NewStore} route=${route} />`;
    case "dead": return html`<${DeadPage} key=${name ?? ""} name=${name} />`;
    case "joins": return html`<${JoinsPage} route=${route} />`;
    case "patterns": return html`<${PatternsPage} route=${route} />`;
    case "scheduled": return html`<${ScheduledPage} />`;
    case "pipelines": return html`<${PipelinesPage} />`;
    case "connections": return html`<${ConnectionsPage} />`;
    case "topics": return html`<${TopicsPage} key=${name ?? ""} route=${route} tab=${name ?? ""} mqtt=${mqtt.value} refused=${mqtt.error} />`;
    case "cluster": return html`<${ClusterPage} />`;
    case "access": return html`<${AccessPage} tab=${name ?? ""} me=${me} />`;
    default:
  }
  return html`<div class="page"><${Empty} title="Page not found">The console has no page at this address. <a href=${to("")}>Go to the overview</a></${Empty}></div>`;
}

function Guarded(props) {
  const [error, reset] = useErrorBoundary();
  useEffect(() => { if (error) reset(); }, [props.route.at]);
  if (error) return html`<div class="page"><${Refusal} error=${error} /></div>`;
  return html`<${Page} ...${props} />`;
}

function Frame({ me, onLogin, onLogout }) {
  const route = useRoute();
  const [menu, setMenu] = useState(false);
  const [keys, setKeys] = useState(false);
  const main = useRef(null), filter = useRef(null);
  const { value: realm, error: away } = useRefreshed((signal) => get("/realm", {}, signal), [], 3000);
  const mqtt = useRefreshed((signal) => get("/mqtt", {}, signal), [], MQTT_MS);
  const hasFigures = may("admin", "monitor");
  // At once where it is to be seen: what is typed next belongs in it. On a phone the menu comes first.
  const toFilter = useCallback(() => {
    const enter = () => { filter.current.focus(); filter.current.select(); };
    enter();
    if (document.activeElement === filter.current) return;
    setMenu(true);
    requestAnimationFrame(enter);
  }, []);
  const close = useCallback(() => setMenu(false), []);
  useEffect(() => {
    if (!hasFigures) { deny(); return undefined; }
    const control = new AbortController();
    follow(control.signal);
    return () => control.abort();
  }, [hasFigures]);
  useEffect(() => { main.current.scrollTop = 0; }, [route.parts.slice(0, 3).join("/")]);
  useEffect(() => {
    const escape = (event) => { if (event.key === "Escape") setMenu(false); };
    addEventListener("keydown", escape);
    return () => removeEventListener("keydown", escape);
  }, []);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the page</a>
    <${Bar} realm=${realm} isAway=${away?.status === 0} me=${me} onMenu=${() => setMenu(true)} onKeys=${() => setKeys(true)} onLogin=${onLogin} onLogout=${onLogout} />
    <${Side} route=${route} isOpen=${menu} onClose=${close} me=${me} mqtt=${mqtt.value} filterRef=${filter} />
    ${menu && html`<button type="button" class="veil" aria-label="Close the menu" onClick=${close}></button>`}
    <main class="main" id="main" tabindex="-1" ref=${main}><${Stale} realm=${realm} isAway=${away?.status === 0} /><${Guarded} route=${route} realm=${realm} me=${me} mqtt=${mqtt} /></main>
    <${Toasts} /><${Keys} open=${keys} setOpen=${setKeys} onFilter=${toFilter} /></div>`;
}

function App() {
  const [me, setMe] = useState(undefined);
  const [error, setError] = useState(null);
  const enter = useCallback((who) => { useToken(who.csrf); entered(who); setError(null); setMe(who); }, []);
  const look = useCallback(() => get("/me").then(enter, (refusal) => { if (refusal.status === 401) setMe(null); else setError(refusal); }), []);
  useEffect(() => { whenLoggedOut(() => setMe(null)); look(); }, []);
  // Rights come and go while one is there.
  useEffect(() => {
    if (!me || me.mode === "off") return undefined;
    const timer = setInterval(() => { if (!document.hidden) get("/me").then(enter, () => {}); }, ME_MS);
    return () => clearInterval(timer);
  }, [me?.name]);
  const leave = async () => {
    await post("/logout").catch(() => {});
    useToken("");
    setMe(null);
  };
  if (error) return html`<main class="door"><div class="panel"><div class="brand"><${Mark} />Penstock</div><${Refusal} error=${error} />
    <div class="section"><${Button} icon="again" onClick=${() => { setError(null); look(); }}>Try again</${Button}></div></div></main>`;
  if (me === undefined) return html`<main class="door"><${Loading} what="Connecting to the realm" /></main>`;
  if (me === null) return html`<${Login} onEnter=${enter} />`;
  return html`<${Frame} key=${me.name} me=${me} onLogin=${() => setMe(null)} onLogout=${leave} />`;
}

render(html`<${App} />`, document.getElementById("console"));
