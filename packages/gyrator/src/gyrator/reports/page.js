// Shows the levels of a graph, and highlights related elements. `data-n` of an element lists calls
// of the ATen graph by number; `data-g`, of the element or an ancestor, identifies the graph.
"use strict";

const linked = new Map(); // graph -> [element, set of its calls]
const opened = new Map(); // graph -> promise of its levels

function link(parent) {
  for (const element of parent.querySelectorAll("[data-n]")) {
    const graph = element.closest("[data-g]").dataset.g;
    if (!linked.has(graph)) linked.set(graph, []);
    linked.get(graph).push([element, new Set(element.dataset.n.split(" "))]);
  }
}

// The levels are stored compressed, and expanded when they scroll into view.
async function unpack(levels) {
  const packed = Uint8Array.from(atob(levels.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  levels.innerHTML = await new Response(stream).text();
  link(levels);
  const all = [...levels.children];
  const first = new Set([0, all.length - 1, all.findIndex((p) => p.dataset.pane === "Kernel IR")]);
  all.forEach((pane, k) => {
    const button = document.createElement("button");
    button.textContent = pane.dataset.pane;
    const show = (on) => {
      pane.hidden = !on;
      button.setAttribute("aria-pressed", on);
      const line = pane.querySelector(".on") || pane.querySelector("[data-n]");
      if (on && line) bring(line);
    };
    button.addEventListener("click", () => show(pane.hidden));
    show(first.has(k));
    levels.previousElementSibling.append(button);
  });
  levels.classList.remove("packed");
}

function open(graph) {
  const levels = document.getElementById(`levels-${graph}`);
  if (levels && !opened.has(graph)) opened.set(graph, unpack(levels));
  return opened.get(graph);
}

function bring(line) {
  const text = line.closest(".text");
  text.scrollTop = line.offsetTop - text.offsetTop - text.clientHeight / 4;
}

function mark(name, graph, calls) {
  for (const element of document.querySelectorAll("." + name)) element.classList.remove(name);
  const own = (linked.get(graph) || []).filter(([, has]) => calls.some((call) => has.has(call)));
  for (const [element] of own) element.classList.add(name);
  return own.map(([element]) => element);
}

// Selects calls, and scrolls each pane to the first selected line, except the pane in which the
// user clicked.
async function choose(graph, calls, chosen) {
  await open(graph);
  const seen = new Set([chosen && chosen.closest(".text")]);
  for (const element of mark("on", graph, calls)) {
    const text = element.closest(".text");
    if (!text || seen.has(text)) continue;
    seen.add(text);
    bring(element);
  }
}

function target(event) {
  const element = event.target.closest && event.target.closest("[data-n]");
  if (!element) return null;
  const graph = element.closest("[data-g]").dataset.g;
  return { element, graph, calls: element.dataset.n.split(" ") };
}

document.addEventListener("mouseover", (event) => {
  const found = target(event);
  mark("at", found ? found.graph : "", found ? found.calls : []);
});

document.addEventListener("click", async (event) => {
  const found = target(event);
  if (!found || getSelection().toString()) return;
  await choose(found.graph, found.calls, found.element);
  history.replaceState(null, "", `#levels-${found.graph}:${found.calls.join(".")}`);
  if (!found.element.closest(".levels")) {
    document.getElementById(`levels-${found.graph}`).scrollIntoView({ behavior: "smooth" });
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose("", [], null);
});

for (const slider of document.querySelectorAll(".zoom-by")) {
  const lanes = slider.closest("div").nextElementSibling.firstElementChild;
  slider.addEventListener("input", () => (lanes.style.width = `${slider.value}%`));
}

link(document);
const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target: levels } of entries) {
      if (isIntersecting) open(levels.id.slice("levels-".length));
    }
  },
  { rootMargin: "800px" },
);
for (const levels of document.querySelectorAll(".levels")) near.observe(levels);

// A link to the selection: `#levels-0-1:3.5`.
const address = /^#levels-([\d-]+):([\d.]+)$/.exec(location.hash);
if (address) {
  choose(address[1], address[2].split("."), null).then(() =>
    document.getElementById(`levels-${address[1]}`).scrollIntoView(),
  );
}
