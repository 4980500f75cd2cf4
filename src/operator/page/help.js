// Help: every condition with what it means and what to do, and why a message is not sent or came back.
// It is that of the version that runs.

import { element, find, link } from "/nodes.js";
import { address } from "/router.js";
import { read, report } from "/session.js";

let topics = null;

export async function show({ id }) {
  try {
    topics ??= await read("/page/help");
    draw(id);
    find("help-note").textContent = "";
  } catch (error) {
    report(error, find("help-note"));
  }
}

export function follow() {}

function draw(wanted) {
  const { conditions, messages } = topics;
  fillList("help-messages", messages.map(({ topic, cause, advice }) => [topic, `${cause}.`, `${advice}.`]), wanted);
  fillList("help-conditions", conditions.map(({ code, severity, meaning, advice }) => [code, `${severity}: ${meaning}.`, `${advice}.`]), wanted);
  const target = wanted === null ? null : document.getElementById(`help-${wanted}`);
  target?.scrollIntoView({ block: "center" });
  target?.focus({ preventScroll: true });
}

function fillList(into, rows, wanted) {
  const list = element("dl");
  for (const [topic, meaning, advice] of rows) {
    // A code may stand for two cases: its first is the one that links lead to.
    const isFirst = list.querySelector(`[data-topic="${CSS.escape(topic)}"]`) === null;
    const term = element("dt", null, isFirst ? { id: `help-${topic}`, tabindex: "-1", "data-topic": topic } : {});
    term.append(link(topic, address("help", {}, topic)));
    if (topic === wanted) term.className = "wanted";
    list.append(term, element("dd", meaning), element("dd", advice, { class: "advice" }));
  }
  find(into).replaceChildren(list);
}
