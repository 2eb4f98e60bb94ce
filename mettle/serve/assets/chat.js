'use strict';
// The page of `mettle model serve`: sends texts to the API of the same server, and shows the answer as it comes.
// What the model writes is shown as text, never as HTML.

const by = (id) => document.getElementById(id);
// Of this conversation; another begins with another array.
let messages = [];
let running = null;
let model = null;

function trouble(why) {
  by('trouble').textContent = why;
  by('trouble').hidden = !why;
}

// The model and where it is from.
async function look() {
  const answer = await fetch('/v1/models');
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  model = (await answer.json()).data[0];
  by('model').textContent = model.id;
  document.title = model.id;
  const of = model.mettle;
  const parts = [`context ${model.max_model_len} tokens`];
  if (of.run !== undefined) parts.push(`run ${of.run}, window ${of.window}`);
  parts.push(`weights ${of.weights_root.slice(0, 18)}…`);
  by('provenance').textContent = parts.join(' · ');
  by('tokens').max = model.max_model_len;
}

function paragraph(of, text, kind) {
  const p = document.createElement('p');
  p.className = kind;
  p.textContent = text;
  of.append(p);
  return p;
}

function show(who, text) {
  const item = document.createElement('li');
  paragraph(item, who, 'who');
  const p = paragraph(item, text, 'text');
  by('texts').append(item);
  item.scrollIntoView({ block: 'end' });
  return { item, p };
}

// The data of each server-sent event of an answer.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split('\n\n');
    held = parts.pop();
    for (const part of parts) if (part.startsWith('data: ')) yield part.slice(6);
  }
}

// Sends a request and calls `part` with each part of the text. Returns why the text ended.
async function ask(path, fields, part) {
  const body = {
    model: model.id, stream: true, temperature: Number(by('temperature').value), max_tokens: Number(by('tokens').value), ...fields,
  };
  const answer = await fetch(path, {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal: running.signal,
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  let why = null;
  for await (const data of events(answer)) {
    if (data === '[DONE]') return why;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      part(choice.text ?? choice.delta.content ?? '');
      why = choice.finish_reason ?? why;
    }
  }
  throw new Error('the answer broke off');
}

async function send() {
  const text = by('prompt').value;
  if (running || !text) return;
  trouble('');
  const isChat = by('mode').value === 'chat';
  running = new AbortController();
  by('send').disabled = true;
  by('stop').disabled = false;
  // A screen reader reads the answer when it is whole, not each token.
  by('texts').setAttribute('aria-busy', 'true');
  const conversation = messages;
  let isAsked = false;
  let shown;
  let made = '';
  try {
    await look();
    running.signal.throwIfAborted();
    let path = '/v1/completions';
    let fields = { prompt: text };
    if (isChat) {
      conversation.push({ role: 'user', content: text });
      isAsked = true;
      show('You', text);
      path = '/v1/chat/completions';
      fields = { messages: conversation };
      shown = show('Model', '').p;
    } else {
      const { item } = show('Text', text);
      shown = paragraph(item, '', 'text made');
    }
    by('prompt').value = '';
    const main = document.querySelector('main');
    const why = await ask(path, fields, (part) => {
      const isAtEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
      made += part;
      shown.textContent = made;
      if (isAtEnd) main.scrollTop = main.scrollHeight;
    });
    if (why === 'length') paragraph(shown.parentElement, 'cut at the number of tokens or the end of the context', 'note');
  } catch (error) {
    if (error.name !== 'AbortError') trouble(error.message);
  } finally {
    if (isAsked && made) conversation.push({ role: 'assistant', content: made });
    else if (isAsked) conversation.pop();
    running = null;
    by('texts').removeAttribute('aria-busy');
    by('send').disabled = false;
    by('stop').disabled = true;
    by('prompt').focus();
  }
}

by('form').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
by('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    by('form').requestSubmit();
  }
});
by('stop').addEventListener('click', () => running?.abort());
by('clear').addEventListener('click', () => {
  running?.abort();
  messages = [];
  by('texts').replaceChildren();
  trouble('');
  by('prompt').focus();
});
look().catch((error) => trouble(error.message));
