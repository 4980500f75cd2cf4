// Plots over a span of time, drawn as SVG by hand.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 120;
const LEFT = 44;
const FAR = 20;

export function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Returns the next round number at or above: 1, 2 or 5 times a power of ten.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((round) => round >= value * 0.999);
}

// Plot of series, each { name, colour, value(sample), area, limit }. `write` makes a value a text.
export class Plot {
  constructor(title, series, write, least) {
    this.series = series;
    this.write = write;
    this.least = least;
    this.figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    this.heading = document.createElement("b");
    this.latest = document.createElement("span");
    caption.append(this.heading, this.latest);
    this.drawing = shape("svg", { role: "img" });
    this.figure.append(caption, this.drawing);
    this.name(title);
  }

  name(title) {
    this.title = title;
    this.heading.textContent = title;
  }

  // Draws samples, each with its time in `at`, over a span { from, until, ago }, in milliseconds
  // since the Unix epoch. `ago` names its beginning.
  draw(samples, span, extra) {
    // One unit is one pixel, so that text keeps its shape.
    const width = this.drawing.clientWidth || 400;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const values = this.series.map((one) => samples.map((sample) => [sample.at, one.value(sample, extra)]));
    const most = (isLimit) => Math.max(this.least, ...values.filter((_, index) => Boolean(this.series[index].limit) === isLimit).flat().map(([, value]) => value ?? 0));
    // A limit far above what happens would press that flat: then it is told and not drawn.
    const isNear = most(true) <= FAR * most(false);
    const top = ceiling(isNear ? Math.max(most(true), most(false)) : most(false));
    const x = (at) => LEFT + ((width - LEFT) * (at - span.from)) / (span.until - span.from);
    const y = (value) => HEIGHT - 14 - (HEIGHT - 20) * (value / top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(shape("line", { class: "grid", x1: LEFT, x2: width, y1: y(top * share), y2: y(top * share) }));
      parts.push(shape("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, this.write(top * share)));
    }
    parts.push(shape("text", { x: LEFT, y: HEIGHT }, span.ago));
    parts.push(shape("text", { x: width, y: HEIGHT, "text-anchor": "end" }, "now"));
    this.series.forEach((one, index) => {
      if (isNear || !one.limit) parts.push(...this.lines(values[index], one, x, y));
    });
    this.drawing.replaceChildren(...parts);
    this.tell(values);
  }

  lines(points, one, x, y) {
    const runs = [[]];
    for (const [at, value] of points) {
      if (value === null || value === undefined) runs.push([]);
      else if (x(at) >= LEFT) runs.at(-1).push([x(at).toFixed(1), y(value).toFixed(1)]);
    }
    return runs.filter((run) => run.length > 0).flatMap((run) => {
      // A single look is a dot.
      if (run.length === 1) run.push([(Number(run[0][0]) - 1).toFixed(1), run[0][1]]);
      const line = run.map((point) => point.join(",")).join(" ");
      const drawn = [shape("polyline", { class: `series ${one.colour}${one.limit ? " limit" : ""}`, points: line })];
      if (one.area) {
        const ground = y(0).toFixed(1);
        drawn.push(shape("polygon", { class: `area ${one.colour}`, points: `${run[0][0]},${ground} ${line} ${run.at(-1)[0]},${ground}` }));
      }
      return drawn;
    });
  }

  tell(values) {
    const texts = this.series.map((one, index) => {
      const value = values[index].at(-1)?.[1];
      return `${one.name} ${value === null || value === undefined ? "–" : this.write(value)}`;
    });
    this.latest.replaceChildren(...texts.flatMap((text, index) => {
      const key = document.createElement("i");
      key.className = this.series[index].colour;
      return [key, text];
    }));
    this.drawing.setAttribute("aria-label", `${this.title}: ${texts.join(", ")}`);
  }
}
