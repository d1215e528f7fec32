// The door: user and password, once; then the realm's own session cookie counts.
import { html, useEffect, useState } from "../view.js";
import { post } from "../api.js";
import { Mark } from "../icons.js";
import { Field, Refusal, useDoing } from "../parts.js";

export function Login({ onEnter }) {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const doing = useDoing();
  useEffect(() => { document.title = "Log in · Penstock"; }, []);
  const enter = async (event) => {
    event.preventDefault();
    const me = await doing.act(() => post("/login", { user, password }));
    if (me) onEnter(me);
  };
  return html`<main class="door"><form class="panel" onSubmit=${enter} aria-label="Log in">
    <div class="brand"><${Mark} size=${28} />Penstock</div>
    <div class="form">
      <${Field} label="User" value=${user} onInput=${setUser} autocomplete="username" name="user" autofocus required />
      <${Field} label="Password" type="password" value=${password} onInput=${setPassword} autocomplete="current-password" name="password" required />
      <${Refusal} error=${doing.error} />
      <button type="submit" class="button first" disabled=${doing.busy || !user || !password}>Log in</button>
    </div></form></main>`;
}
