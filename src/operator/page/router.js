// Places of the page: `#/TAB/ID?FILTER`. A browser sends what is behind the # to nobody, so that the
// addresses of recipients in a filter reach no log.

const TABS = ["overview", "messages", "message", "organisations", "keys", "domains", "suppressions", "webhooks", "documents", "captured", "help"];

// Returns where the address leads; the overview if it names no place.
export function place() {
  const [path, query] = location.hash.slice(1).split("?", 2);
  const [, tab, id] = path.split("/");
  const isKnown = TABS.includes(tab);
  return { tab: isKnown ? tab : "overview", id: isKnown && id ? decoded(id) : null, filter: new URLSearchParams(query) };
}

// Returns the address of a place. A filter without a value is left out.
export function address(tab, filter = {}, id = null) {
  const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value)).toString();
  return `#/${tab}${id === null ? "" : `/${encodeURIComponent(id)}`}${query ? `?${query}` : ""}`;
}

export const messageAddress = (id) => address("message", {}, id);

export function go(to) {
  location.hash = to;
}

// The place that led on by itself last.
let left = null;

// As go, but the place before is not kept: nobody wants to go back to a search that led on.
export function goOn(to) {
  left = location.hash;
  location.replace(to);
}

// Returns whether a place leads on by itself, so that no link may lead back to it.
export const leadsOn = (from) => from === left;

function decoded(id) {
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}
