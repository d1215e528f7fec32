// Who is logged in, and what they may do with the realm as a whole. The realm decides; what it
// would refuse is not offered.
import { html } from "./view.js";
import { Empty, Head, Panel } from "./parts.js";
import { quoted } from "./format.js";

let me = null;

/** Somebody has come in; null: nobody. */
export function entered(who) { me = who; }

/** Whether one of `rights` on the realm is theirs. */
export const may = (...rights) => me !== null && ["full", ...rights].some((right) => me.rights.includes(right));

/** Where something needs a right that they lack. */
export function Lacks({ what, right, children }) {
  return html`<${Empty} title="${what} ${what.endsWith("s") ? "need" : "needs"} the right ${right}"
    shell="penstock acl grant realm ${quoted(`${me?.user ?? "anonymous"}@*`)} ${right}">${children ?? ""} A user who manages rights can grant it.</${Empty}>`;
}

export const LacksPage = ({ what, right }) =>
  html`<div class="page"><${Head} title=${what} /><${Panel} label=${what} bare><${Lacks} what=${what} right=${right} /></${Panel}></div>`;
