// Who looks, and what they may do. The token goes to the server once, in a body; the cookie made of it is not for scripts.
import { $, setText, speak } from "./dom.js";

export const session = { may_act: false, signed_in: false, acts: false };

async function post(path, content) {
  const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content) });
  if (answer.ok) return answer.status === 204 ? {} : answer.json();
  const told = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(told.error ?? `the server answers ${answer.status}`), { status: answer.status });
}

// Asks what this browser may do; false: it must sign in to look.
export async function look() {
  const answer = await fetch("pool/session");
  if (answer.status === 401) return false;
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  Object.assign(session, await answer.json());
  return true;
}

// A link may carry the token behind a "#": that part never leaves the browser, and is taken out of the address at once.
export async function signInByLink() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname);
  await post("login", { token: found[1] }).catch((error) => speak(error.message));
}

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
}

// Resolves when signed in; rejects nothing: who closes the dialog stays signed out.
export function signIn(needed) {
  const dialog = $("sign-in");
  const form = dialog.querySelector("form");
  $("sign-in-error").textContent = "";
  dialog.querySelector("[data-close]").hidden = needed;
  return new Promise((resolve) => {
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        await post("login", { token: $("token").value });
        dialog.returnValue = "in";
        dialog.close();
      } catch (error) {
        setText($("sign-in-error"), error.message);
      }
    };
    dialog.oncancel = (event) => { if (needed) event.preventDefault(); };
    dialog.onclose = () => { $("token").value = ""; resolve(dialog.returnValue === "in"); };
    dialog.returnValue = "";
    dialog.showModal();
  });
}

export const signOut = () => post("logout", {});

const ASKED = {
  stop: ["Stop", "No more trials are created. Running ones finish."],
  cancel: ["Cancel", "Running trials are ended now and told as failed."],
  drain: ["Drain", "The worker takes no new trials, finishes the running ones, and ends."],
  pause: ["Pause", "The worker takes no new trials until it is resumed. Running ones go on."],
  resume: ["Resume", "The worker takes trials again."],
};

// Asks before it does anything.
export function doIt(action, what, target) {
  const dialog = $("confirm");
  const button = $("confirm-do");
  const [word, text] = ASKED[action];
  setText($("confirm-title"), `${word} ${what}?`);
  setText($("confirm-text"), text);
  setText($("confirm-error"), "");
  setText(button, word);
  button.className = action === "cancel" || action === "drain" ? "danger" : "";
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      speak((await post("pool/do", { action, ...target })).done);
      dialog.close();
    } catch (error) {
      setText($("confirm-error"), error.message);
    } finally {
      button.disabled = false;
    }
  };
  dialog.showModal();
}
