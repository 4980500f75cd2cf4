import type { components, paths } from "./api";

type Operation = paths["/emails"]["post"];

export const body: Operation["requestBody"]["content"]["application/json"] = {
  from: "Shop <orders@example.com>",
  to: ["Ada <ada@example.net>"],
  subject: "Your order 1815",
  text: "It is on its way.",
};

export function isSent(message: components["schemas"]["Message"]): boolean {
  return message.status === "sent" && message.sesMessageId !== null;
}

export function bounced(page: components["schemas"]["FeedPage"]): string[][] {
  const bounces = page.events.filter((event) => event.type === "email.bounce");
  return bounces.map((event) => event.data.event?.recipients ?? []);
}

export function code(answer: components["schemas"]["Error"]): string {
  return answer.error.code;
}
