// The sum that always holds: published = what is here + where each of the others went (SEM T8).
import { html } from "../view.js";
import { count } from "../format.js";
import { Note } from "../parts.js";

const TERMS = [
  ["live", "live", "stored and readable"],
  ["overdue", "overdue", "expired, about to move to the dead event store"],
  ["consumed", "consumed", "acknowledged by all durables"],
  ["dead", "dead", "moved to the dead event store"],
  ["expired", "expired", "past their time to live"],
  ["evicted", "evicted", "removed for newer events when the store was full"],
  ["purged", "purged", "removed on request"],
  ["replaced", "replaced", "replaced by a newer event of the same key"],
  ["relayed", "relayed", "delivered to connected clients, never stored"],
  ["redriven", "redriven", "published again, to their origin or another store"],
  ["dropped", "dropped", "no subscriber had interest in them"],
  ["quarantined", "quarantined", "unreadable, set aside"],
];

export function Equation({ conservation }) {
  const terms = TERMS.filter(([key]) => conservation[key] || key === "live");
  const zero = TERMS.filter(([key]) => !conservation[key] && key !== "live").map(([, word]) => word);
  const words = terms.map(([key, word]) => `${count(conservation[key])} ${word}`).join(" plus ");
  return html`<div role="group" aria-label="${count(conservation.published)} published ${conservation.holds ? "equals" : "does not equal"} ${words}">
    <div class="equation" aria-hidden="true">
      <div class="term whole"><span class="n">${count(conservation.published)}</span><span class="w">published</span></div>
      <span class="sign">${conservation.holds ? "=" : "≠"}</span>
      ${terms.map(([key, word, meaning], index) => html`${index > 0 && html`<span class="sign">+</span>`}
        <div key=${key} class="term ${key === "dead" || key === "quarantined" ? "bad" : ""}" title=${meaning}><span class="n">${count(conservation[key])}</span><span class="w">${word}</span></div>`)}</div>
    <div class="split" aria-hidden="true">${terms.filter(([key]) => conservation[key]).map(([key]) =>
      html`<i key=${key} class=${key} title=${key} style=${{ flexGrow: conservation[key] }}></i>`)}</div>
    ${conservation.holds
      ? html`<p class="help-line">None ${zero.length > 1 ? `${zero.slice(0, -1).join(", ")} or ${zero.at(-1)}` : zero[0] ?? ""}.</p>`
      : html`<${Note} kind="bad" title="The sum is wrong.">${count(conservation.published)} events were published, but the terms add up to ${count(conservation.sum)}. Please report this.</${Note}>`}</div>`;
}
