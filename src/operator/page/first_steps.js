// What somebody sees who has sent nothing yet: a line that sends a message, and what comes next.

import { copyButton, element, link } from "/nodes.js";
import { read } from "/session.js";

// Shows the first steps in a box.
export async function firstSteps(box) {
  if (box.childElementCount > 0) return;
  let facts;
  try {
    facts = await read("/page/first-steps");
  } catch {
    return;
  }
  const { api, organisation, domain } = facts;
  const name = organisation ?? "acme";
  const from = domain ?? "example.com";
  const command = (text) => {
    const shown = element("pre", text, { tabindex: "0", role: "region", "aria-label": "Command" });
    const line = element("div", null, { class: "command" });
    line.append(shown, copyButton(text, "the command"));
    return line;
  };
  const curl = `curl ${api}/emails -H "Authorization: Bearer $PILLARBOX_KEY" -H "Content-Type: application/json" -d '${JSON.stringify({ from: `Hello <hello@${from}>`, to: ["success@simulator.amazonses.com"], subject: "Hello", text: "It works.", idempotencyKey: "hello-1", tag: "transactional" })}'`;
  const steps = [
    ...(organisation ? [] : [["Add an organisation", command(`pillarbox org add ${name}`)]]),
    ...(domain ? [] : [[`Add the domain that ${name} sends from, and publish the DNS records that the command prints`, command(`pillarbox domain add --org ${name} ${from}`)]]),
    ["Create a key, which is shown only once, and set it for the next command (export PILLARBOX_KEY=KEY)", command(`pillarbox key add --org ${name}`)],
    [`Send a message for ${name}: SES's own simulator accepts it and reports a delivery`, command(curl)],
    ["Let pillarbox deliver events to your application", command(`pillarbox webhook add --org ${name} https://app.example.com/hooks`)],
  ];
  const list = element("ol");
  for (const [told, line] of steps) {
    const item = element("li", `${told}:`);
    item.append(line);
    list.append(item);
  }
  const places = element("p", "Then look at: ");
  places.append(link("API keys", "#/keys"), ", ", link("Domains", "#/domains"), ", ", link("Webhooks", "#/webhooks"), ", ", link("Help", "#/help"), ".");
  box.replaceChildren(element("h3", "The first message"), list, places);
}
