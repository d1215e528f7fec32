// Move a durable: first the realm tells what would change, then the name has to be typed.
import { html, useEffect, useState } from "../view.js";
import { get, post } from "../api.js";
import { count, many } from "../format.js";
import { Field, Note, Refusal, TypeName, tell, useDoing } from "../parts.js";

const SETTLED_MS = 300;
const PLACES = [["earliest", "the earliest event that is stored"], ["latest", "behind everything"], ["id", "an event"], ["time", "a time (UTC)"]];

function Told({ outcome }) {
  const gone = Object.entries(outcome.gone).map(([cause, number]) => `${count(number)} ${cause}`).join(", ");
  return html`<${Note} kind=${outcome.skipped ? "warn" : "info"} slim title="It would go on from ${outcome.position}, with ${many(outcome.outstanding, "event")} outstanding">
    ${many(outcome.again, "event")} would come that ${outcome.again === 1 ? "is" : "are"} not outstanding now, ${count(outcome.skipped)} would be skipped, and ${count(outcome.taken_back)} taken back from clients.
    ${outcome.skipped > 0 && " What is skipped leaves the channel when no other durable wants it."}${gone && ` Of what comes after this place, these have left: ${gone}.`}</${Note}>`;
}

/** `route` takes the seek and tells of it; `name` is what has to be typed. */
export function SeekDialog({ route, name, onClose, onDone }) {
  const [kind, setKind] = useState("earliest");
  const [text, setText] = useState("");
  const [told, setTold] = useState(null);
  const [refused, setRefused] = useState(null);
  const [key] = useState(() => crypto.getRandomValues(new Uint32Array(4)).join("-"));
  const doing = useDoing();
  const isOpen = kind === "id" || kind === "time";
  const to = isOpen ? text.trim() : kind;
  useEffect(() => {
    setTold(null);
    setRefused(null);
    if (!to) return undefined;
    let over = false;
    const timer = setTimeout(async () => {
      try {
        const answer = await get(route, { to });
        if (!over) setTold(answer);
      } catch (error) { if (!over) setRefused(error); }
    }, SETTLED_MS);
    return () => { over = true; clearTimeout(timer); };
  }, [to]);
  const seek = async () => {
    const answer = await doing.act(() => post(route, { to, key }));
    if (answer) { tell(`${name} goes on from ${answer.position}, with ${many(answer.outstanding, "event")} outstanding.`); onDone(); onClose(); }
  };
  return html`<${TypeName} title="Move ${name}" name=${name} verb="Move" ready=${told !== null && !refused} doing=${doing} onDone=${seek} onClose=${onClose}>
    <div class="form"><div class="pair"><${Field} label="To" value=${kind} onInput=${setKind} options=${PLACES} />
      ${isOpen && html`<${Field} label=${kind === "id" ? "Event id" : "Time"} value=${text} onInput=${setText} inputmode=${kind === "id" ? "numeric" : "text"} placeholder=${kind === "id" ? "42" : "2026-05-04T12:00:00"} mono />`}</div></div>
    <div class="counted" role="status">${refused ? html`<${Refusal} error=${refused} slim />`
      : told ? html`<${Told} outcome=${told} />`
      : html`<${Note} slim>${to ? "Counting…" : "Say where it is to go on."}</${Note}>`}</div></${TypeName}>`;
}
