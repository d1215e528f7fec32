// The live tail: events as they come, of a channel, a queue, or all channels of a pattern.
import { html, useEffect, useRef, useState } from "../view.js";
import { stream } from "../api.js";
import { count, many, quoted } from "../format.js";
import { Button, Empty, Note, Panel } from "../parts.js";
import { Detail } from "./detail.js";
import { Rows, idOf } from "./rows.js";
import { routeOf } from "./store.js";

const BUFFER = 500;
const DRAW_MS = 200;
/** Between two attempts to take up the view again once the realm is away. */
const AGAIN_MS = 1000;
/** What ends a view only until the realm is back. */
const PASSING = new Set(["realm-stopping", "unavailable", "no-quorum", "elsewhere", "connection-lost"]);
/** What Space works. */
const SPACED = "input, textarea, select, summary, [contenteditable], [role=tree], button:not(.event-row)";

/** An event of an address: its id, and the channel that it is of. */
function placed(chosen, name) {
  const at = chosen.indexOf("@");
  return at < 0 ? [name, chosen] : [chosen.slice(at + 1), chosen.slice(0, at)];
}

/** Events of the store `name`, or of all channels of a `pattern`; `example` is a command that publishes one. */
export function Tail({ kind = "channel", name, pattern, selector, example, chosen, setChosen, onRefused }) {
  const [shown, setShown] = useState([]);
  const [running, setRunning] = useState(true);
  const [waiting, setWaiting] = useState(0);
  const [total, setTotal] = useState(0);
  const [lost, setLost] = useState(0);
  const [state, setState] = useState("opening");
  const kept = useRef({ buffer: [], running: true, total: 0, drawn: 0, dirty: false });
  kept.current.running = running;
  const draw = () => {
    const own = kept.current;
    own.drawn = own.total;
    own.dirty = false;
    setShown([...own.buffer]); setWaiting(0); setTotal(own.total);
  };
  useEffect(() => {
    const control = new AbortController(), own = kept.current;
    own.buffer = [];
    own.total = 0;
    draw(); setLost(0); setState("opening");
    let last = null, end = null;
    const take = (what, data) => {
      if (what === "event") {
        own.buffer.unshift(data);
        own.buffer.length = Math.min(own.buffer.length, BUFFER);
        own.total += 1;
        own.dirty = true;
        last = data.event_id;
      } else if (what === "lost") setLost((before) => before + data.events);
      else if (what === "end") end = data;
    };
    const follow = async () => {
      while (!control.signal.aborted) {
        end = null;
        // Of one store the view goes on behind the last event that was seen; of a pattern from now on.
        const start = last === null || pattern ? undefined : String(BigInt(last) + 1n);
        try {
          await stream(pattern ? "/live" : routeOf(kind, name, "live"), { pattern, selector, start }, control.signal, take, () => { setState("open"); onRefused(null); });
          if (end !== null && !PASSING.has(end.code)) {
            setState("ended");
            if (pattern) onRefused(end);  // a store that is gone says so on its own page
            return;
          }
        } catch (error) {
          if (control.signal.aborted) return;
          // The realm's own refusal is final; a network error, or a proxy's, is not.
          if (error.status >= 400 && error.status < 500) { setState("ended"); onRefused(error); return; }
        }
        setState("lost");
        await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
      }
    };
    follow();
    return () => control.abort();
  }, [kind, name, pattern, selector]);
  useEffect(() => {
    const timer = setInterval(() => {
      const own = kept.current;
      if (!own.dirty) return;
      if (own.running) draw(); else setWaiting(own.total - own.drawn);
    }, DRAW_MS);
    return () => clearInterval(timer);
  }, []);
  const turn = () => { if (!running) kept.current.dirty = true; setRunning(!running); };
  const clear = () => { kept.current.buffer = []; draw(); };
  const turning = useRef(turn);
  turning.current = turn;
  // Wherever the focus is, unless Space has a meaning there.
  useEffect(() => {
    const press = (event) => {
      if (event.key !== " " || event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
      if (document.querySelector("dialog[open]") || event.target.closest?.(SPACED)) return;
      event.preventDefault();
      if (!event.repeat) turning.current();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const [store, id] = chosen === null ? [] : placed(chosen, name);
  const command = example ?? (pattern ? `subscribe ${quoted(pattern)}` : `${kind === "queue" ? "queue push" : "publish"} ${quoted(name)} 'hello'`);
  const saying = { opening: "Opening", ended: "Ended", lost: "Connection lost, reconnecting", open: running ? "Watching" : "Paused" }[state];
  return html`<div class="events-grid ${chosen === null ? "" : "with-detail"}">
    <${Panel} bare label="Live events">
      <div class="pager" style=${{ borderTop: 0 }}><${Button} kind=${running ? "small" : "small first"} icon=${running ? "pause" : "play"} onClick=${turn}>${running ? "Pause" : "Resume"}</${Button}>
        <span role="status"><i class="dot ${state === "open" && running ? "ok" : "warn"}" style=${{ display: "inline-block", marginRight: "8px" }}></i>${saying}${waiting ? `, ${many(waiting, "event")} waiting` : ""}</span>
        <span class="fill"></span><span>${many(total, "event")} seen${total > BUFFER ? `, the last ${count(BUFFER)} kept` : ""}</span>
        <${Button} kind="small plain" onClick=${clear}>Clear</${Button}></div>
      ${lost > 0 && html`<div class="panel-body"><${Note} kind="warn" slim title="Too many events to show.">${many(lost, "event")} skipped on this page; stored events are not affected.</${Note}></div>`}
      ${shown.length ? html`<${Rows} live several=${Boolean(pattern)} label="Live events, the newest first" events=${shown} chosen=${chosen} onPick=${setChosen} />`
        : html`<div class="event-room live"><${Empty} title=${{ ended: "The live view has ended", opening: "Opening the live view", lost: "The connection to the realm is lost" }[state] ?? "Waiting for events"} shell=${state !== "open" ? undefined : `penstock ${command}`}>
          ${state !== "open" ? "" : `${selector ? "Matching events" : "Events"} published from now on${pattern ? ", also on channels created later," : ""} appear here, newest first. Consumers are not affected.`}</${Empty}></div>`}</${Panel}>
    ${chosen !== null && html`<${Detail} key=${chosen} several=${Boolean(pattern)} kind=${kind} name=${store} id=${id} known=${kept.current.buffer.find((each) => idOf(each) === chosen)} onClose=${() => setChosen(null)} />`}</div>`;
}
