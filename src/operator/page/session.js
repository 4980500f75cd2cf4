// The page's key, and requests that carry it. The key is in no link: it comes once behind the # of
// the address that the service prints, by hand into a field, or from another tab of this browser.

const STORED = "pillarbox-page-key";
const KEY = /^[\w-]{43}$/;
const tabs = new BroadcastChannel(STORED);
let key = null;
// Signed in by a password or a proxy, so that requests need no key.
let isSignedIn = false;
let refused = null;
let waiting = null;

export class Locked extends Error {}

// Takes the key from the address at once, so that nobody copies it from there.
export function begin() {
  takeFromAddress();
  key ??= sessionStorage.getItem(STORED);
  tabs.addEventListener("message", ({ data }) => {
    if (data.wanted && key) tabs.postMessage({ key });
    // Another tab may not know yet that its key is refused.
    if (data.key && data.key !== refused && !key) keep(data.key);
    if (data.signedIn && !isOpen()) signedIn();
  });
}

// Returns whether the address held a key.
export function takeFromAddress() {
  const given = location.hash.slice(1);
  if (!KEY.test(given)) return false;
  history.replaceState(null, "", location.pathname);
  keep(given);
  return true;
}

// Takes what somebody pasted: the key, or the whole address that ends with it. Returns whether it
// can be a key.
export function takeFromField(text) {
  const given = text.trim().split("#").at(-1);
  if (!KEY.test(given)) return false;
  keep(given);
  return true;
}

export const isOpen = () => key !== null || isSignedIn;
export const canSignOut = () => key === null && isSignedIn;

// Asks whether this browser is signed in. Returns whether it may sign in by a password.
export async function askForSession() {
  const response = await fetch("/page/session", { cache: "no-store" }).catch(() => null);
  if (!response?.ok) return false;
  const { open, password } = await response.json();
  isSignedIn = open;
  return password;
}

// Signs in by a password. Returns why that failed; nothing if it did not.
export async function signIn(password) {
  const response = await fetch("/page/session", { method: "POST", body: password, cache: "no-store" });
  if (!response.ok) return (await response.json()).message;
  signedIn();
  tabs.postMessage({ signedIn: true });
  return null;
}

export async function signOut() {
  await fetch("/page/session", { method: "DELETE", cache: "no-store" });
  location.reload();
}

function signedIn() {
  isSignedIn = true;
  waiting?.();
}

// Ends when there is a key, or somebody has signed in.
export async function keyGiven() {
  if (isOpen()) return;
  const given = new Promise((done) => { waiting = done; });
  tabs.postMessage({ wanted: true });
  await given;
}

// Forgets the key, because the service refused it.
export function forget() {
  refused = key;
  key = null;
  isSignedIn = false;
  sessionStorage.removeItem(STORED);
}

function keep(given) {
  key = given;
  sessionStorage.setItem(STORED, given);
  waiting?.();
}

export async function ask(path, signal) {
  const response = await fetch(path, { headers: key === null ? {} : { Authorization: `Bearer ${key}` }, cache: "no-store", signal });
  if (response.status === 401) throw new Locked();
  return response;
}

// Returns a document of the service.
export async function read(path) {
  const response = await ask(path);
  const document = await response.json();
  if (!response.ok) throw Object.assign(new Error(document.message ?? document.error?.message ?? `status ${response.status}`), { status: response.status });
  return document;
}

// Says in a note why something could not be read. A lost key shows by itself.
export function report(error, note) {
  if (!(error instanceof Locked)) note.textContent = `The page could not read this: ${error.message}`;
}
