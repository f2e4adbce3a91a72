// The console works without this file. It adds: live updates, copy buttons, a filter while typing, a confirmation before actions that cannot be undone.
(() => {
  "use strict";
  document.documentElement.classList.add("js");

  // An element with `data-live="SECONDS"` is replaced by its newest version from the server, unless the user is typing in it.
  let busy = false;
  const again = () => {
    const waits = [...document.querySelectorAll("[data-live]")].map((each) => Number(each.dataset.live));
    if (waits.length) setTimeout(refresh, Math.min(...waits) * 1000);
  };
  const refresh = async () => {
    if (document.hidden || busy) return again();
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
      const status = document.getElementById("live-status");
      if (!answer.ok) {
        if (status) status.textContent = `not updated: the console answers ${answer.status}`;
      } else {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const ids = [...document.querySelectorAll("[data-live]")].map((each) => each.id);
        for (const id of ids) {
          const old = document.getElementById(id), now = page.getElementById(id);
          if (!now) location.reload();
          else if (!old.contains(document.activeElement) && old.outerHTML !== now.outerHTML) old.replaceWith(now);
        }
        if (status) status.textContent = "";
      }
    } catch {
      const status = document.getElementById("live-status");
      if (status) status.textContent = "not updated: the console does not answer";
    }
    busy = false;
    again();
  };
  again();

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    navigator.clipboard?.writeText(button.dataset.copy).then(() => { button.textContent = "copied"; });
  });
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  // Hides rows of the table named by `data-filter` that do not contain all typed words.
  document.addEventListener("input", (event) => {
    const table = document.getElementById(event.target.dataset?.filter ?? "");
    if (!table) return;
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
})();
