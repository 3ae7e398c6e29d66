import { getJson, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { $, h } from "./dom.js";
import { Form } from "./form.js";
import { Live } from "./live.js";

const TABS = ["chat", "form"];

function choose(name) {
  for (const each of TABS) {
    const tab = $(`tab-${each}`);
    tab.setAttribute("aria-selected", each === name);
    tab.tabIndex = each === name ? 0 : -1;
    $(each).hidden = each !== name;
  }
}

function arrow(event) {
  if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  const next = $("chat").hidden ? "chat" : "form";
  choose(next);
  $(`tab-${next}`).focus();
}

for (const name of TABS) {
  $(`tab-${name}`).addEventListener("click", () => choose(name));
  $(`tab-${name}`).addEventListener("keydown", arrow);
}

$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value.trim());
  $("key").value = "";
  open();
});

async function open() {
  let info;
  try {
    info = await getJson("server_info");
  } catch (error) {
    $("unlock").hidden = error.status !== 401;
    $("about").replaceChildren(h("span", { class: "error" }, error.message));
    return;
  }
  $("unlock").hidden = true;
  const { engine, served_model_name: model } = info;
  document.title = `${model} - sgl`;
  $("about").textContent = `${model} · ${engine.architecture} · ${engine.device}, ${engine.dtype} · context ${engine.context.toLocaleString("en")} tokens`;
  new Chat(model);
  new Form(model);
  new Live();
  $("say").focus();
}

open();
