"use strict";
(() => {
  const browse = (box) => {
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, text: row.textContent.toLowerCase() }));
    const input = box.querySelector("input");
    const status = box.querySelector("[role=status]");

    const filter = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const { row, text } of rows) {
        const fits = words.every((word) => text.includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      status.textContent = `${shown} of ${rows.length} rows`;
    };

    const value = (row, column) => {
      const text = row.cells[column].textContent;
      return row.cells[column].classList.contains("number") ? (text === "-" ? -1 : Number(text)) : text;
    };
    const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    const sort = (head, column) => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      rows.sort((a, b) => (up ? 1 : -1) * compare(value(a.row, column), value(b.row, column)));
      body.append(...rows.map(({ row }) => row));
    };

    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(head, column));
      head.replaceChildren(button);
    });
    input.addEventListener("input", filter);
    box.querySelector(".controls").hidden = false;
    filter();
  };
  document.querySelectorAll(".browse").forEach(browse);

  const closed = () => Array.from(document.querySelectorAll("details:not([open])"));
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = closed();
    for (const element of opened) element.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const element of opened) element.open = false;
  });
})();
