// A click on the head of a table sorts its rows by that column, a second one the other way round.
const value = (row, column) => {
  const text = row.cells[column]?.textContent.trim() ?? "";
  const number = parseFloat(text.replace(/^[≥~<>\s]+/, "").replace("−", "-").replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
};
const order = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

document.addEventListener("click", ({ target }) => {
  const head = target.closest("table:not([class]) thead th");
  if (!head) return;
  const table = head.closest("table");
  const column = [...head.parentNode.children].indexOf(head);
  const sign = head.dataset.sorted === "up" ? -1 : 1;
  table.querySelectorAll("th").forEach((other) => delete other.dataset.sorted);
  head.dataset.sorted = sign > 0 ? "up" : "down";
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => sign * order(value(a, column), value(b, column))));
});
