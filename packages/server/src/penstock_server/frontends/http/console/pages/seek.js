// Move a durable: first the realm tells what would change, then the name has to be typed.
import { html, useEffect, useState } from "../view.js";
import { get, post } from "../api.js";
import { count, many } from "../format.js";
import { Field, Note, Refusal, TypeName, tell, useDoing } from "../parts.js";

const SETTLED_MS = 300;
const PLACES = [["earliest", "the earliest stored event"], ["latest", "after the newest event"], ["id", "an event id"], ["time", "a time (UTC)"]];

function Told({ outcome }) {
  const gone = Object.entries(outcome.gone).map(([cause, number]) => `${count(number)} ${cause}`).join(", ");
  return html`<${Note} kind=${outcome.skipped ? "warn" : "info"} slim title="It would continue from ${outcome.position}, with ${many(outcome.outstanding, "event")} outstanding">
    ${many(outcome.again, "event")} not outstanding now would be delivered, ${count(outcome.skipped)} would be skipped, and ${count(outcome.taken_back)} taken back from clients.
    ${outcome.skipped > 0 && " Skipped events leave the channel unless another durable needs them."}${gone && ` Events after this position that are no longer stored: ${gone}.`}</${Note}>`;
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
    if (answer) { tell(`${name} continues from ${answer.position}, with ${many(answer.outstanding, "event")} outstanding.`); onDone(); onClose(); }
  };
  return html`<${TypeName} title="Move ${name}" name=${name} verb="Move" ready=${told !== null && !refused} doing=${doing} onDone=${seek} onClose=${onClose}>
    <div class="form"><div class="pair"><${Field} label="To" value=${kind} onInput=${setKind} options=${PLACES} />
      ${isOpen && html`<${Field} label=${kind === "id" ? "Event id" : "Time"} value=${text} onInput=${setText} inputmode=${kind === "id" ? "numeric" : "text"} placeholder=${kind === "id" ? "42" : "2026-05-04T12:00:00"} mono />`}</div></div>
    <div class="counted" role="status">${refused ? html`<${Refusal} error=${refused} slim />`
      : told ? html`<${Told} outcome=${told} />`
      : html`<${Note} slim>${to ? "Counting…" : "Enter the new position."}</${Note}>`}</div></${TypeName}>`;
}
