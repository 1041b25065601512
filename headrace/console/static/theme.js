// Before the first paint: what the reader has chosen, else what the system says.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("headrace-theme"); } catch { /* no storage: the system's */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
