// An unmodified rhea against a realm: node suite.mjs amqp://host:port [test ...]
// Runs all tests, or those that are named as FAILED names them. Says in lines of one form what has become of each test.

import assert from 'node:assert/strict';
import { setTimeout as after } from 'node:timers/promises';
import rhea from 'rhea';

const url = new URL(process.argv[2]);
const LONG = 10_000;
const QUIET = 300;
const tests = [];

/** A test gets a connection of its own and the name of a destination nobody else has. */
const test = (name, body) => tests.push([name, body]);

/** The context of the next event of this name; fails when it does not come. */
function next(emitter, event, patience = LONG) {
  return new Promise((found, failed) => {
    const late = setTimeout(() => failed(new Error(`no ${event} in ${patience} ms`)), patience);
    emitter.once(event, (context) => {
      clearTimeout(late);
      found(context);
    });
  });
}

/** What is done when a connection of the test at hand ends that nobody has closed. */
let lost = () => {};
const MOVED = ['amqp:connection:forced', 'amqp:connection:redirect'];

function connect(options = {}) {
  const connection = rhea
    .create_container()
    .connect({ host: url.hostname, port: url.port, reconnect: false, ...options });
  const ended = lost;
  connection.on('disconnected', () => ended());
  connection.on('connection_error', () => {
    if (MOVED.includes(connection.error?.condition)) ended();
  });
  return connection;
}

const queue = (address) => ({ address, capabilities: ['queue'] });
const topic = (address) => ({ address, capabilities: ['topic'] });

async function sender(connection, target, options = {}, patience = LONG) {
  const link = connection.open_sender({ target, ...options });
  await next(link, 'sendable', patience);
  return link;
}

/** A receiver that says what it has got: `got` messages, and `wait(count)` for so many of them. */
function receiver(connection, source, options = {}) {
  const link = connection.open_receiver({ source, ...options });
  link.got = [];
  link.on('message', ({ message, delivery }) => link.got.push({ message, delivery }));
  link.wait = async (count) => {
    while (link.got.length < count) await next(link, 'message');
    return link.got;
  };
  link.on('receiver_error', () => {});
  return link;
}

async function sent(link, ...messages) {
  let settled = 0;
  const done = new Promise((found) =>
    link.on('settled', () => {
      settled += 1;
      if (settled === messages.length) found();
    }),
  );
  messages.forEach((message) => link.send(message));
  await done;
}

const bodies = (link) => link.got.map(({ message }) => message.body);

test('what is sent is accepted and comes in order', async (connection, name) => {
  const link = await sender(connection, queue(name));
  const messages = Array.from({ length: 300 }, (_, number) => ({ body: `m${number}` }));
  await sent(link, ...messages);
  const found = receiver(connection, queue(name));
  await found.wait(300);

  assert.deepEqual(bodies(found), messages.map(({ body }) => body));
});

test('every part of a message comes out as it went in', async (connection, name) => {
  const link = await sender(connection, queue(name));
  const { types } = rhea;
  const message = {
    message_id: 'id-1',
    correlation_id: 7,
    subject: 'subject',
    reply_to: 'answers',
    content_type: 'text/plain',
    content_encoding: 'identity',
    group_id: 'group',
    group_sequence: 3,
    reply_to_group_id: 'others',
    creation_time: new Date(1_700_000_000_000),
    durable: true,
    priority: 8,
    message_annotations: { 'x-opt-mine': 'kept' },
    application_properties: {
      text: 'Grüße',
      yes: true,
      int: types.wrap_int(-5),
      long: types.wrap_long(2 ** 40),
      ulong: types.wrap_ulong(9),
      short: types.wrap_short(-2),
      ubyte: types.wrap_ubyte(200),
      float: types.wrap_float(1.5),
      double: types.wrap_double(0.1),
      when: types.wrap_timestamp(1_700_000_000_001),
      nothing: null,
    },
    body: { list: [1, 'two', null], map: { deep: true } },
  };
  await sent(link, message);
  const [{ message: found }] = await receiver(connection, queue(name)).wait(1);

  const plain = ['message_id', 'correlation_id', 'subject', 'reply_to', 'content_type'];
  plain.push('content_encoding', 'group_id', 'group_sequence', 'reply_to_group_id');
  plain.push('creation_time', 'durable', 'priority', 'body');
  for (const part of plain) assert.deepEqual(found[part], message[part], part);
  assert.equal(found.message_annotations['x-opt-mine'], 'kept');
  const got = found.application_properties;
  assert.deepEqual(Object.keys(got).sort(), Object.keys(message.application_properties).sort());
  for (const [key, value] of Object.entries(message.application_properties)) {
    const expected = value !== null && value.value !== undefined ? value.value : value;
    assert.equal(Number(got[key]) || String(got[key]), Number(expected) || String(expected), key);
  }
});

test('a footer is refused, which rhea writes before the body', async (connection, name) => {
  const link = await sender(connection, queue(name));
  const refusal = next(link, 'rejected');
  link.send({ footer: { 'x-opt-sum': 'last' }, body: 'x' });
  const { delivery } = await refusal;

  assert.match(delivery.remote_state.error.description, /section/);
});

test('data sections stay what they are', async (connection, name) => {
  const link = await sender(connection, queue(name));
  const body = rhea.message.data_section(Buffer.from([0, 1, 254, 255]));
  await sent(link, { body });
  const [{ message }] = await receiver(connection, queue(name)).wait(1);

  assert.equal(message.body.typecode, body.typecode);
  assert.deepEqual([...message.body.content], [0, 1, 254, 255]);
});

test('a message of several mebibytes comes in many frames', async (connection, name) => {
  const link = await sender(connection, queue(name));
  const body = 'x'.repeat(3 << 20);
  await sent(link, { body });
  const [{ message }] = await receiver(connection, queue(name)).wait(1);

  assert.equal(message.body, body);
});

test('settled sends need no answer', async (connection, name) => {
  const link = await sender(connection, queue(name), { snd_settle_mode: 1 });
  for (let number = 0; number < 50; number += 1) link.send({ body: number });
  const found = receiver(connection, queue(name));
  await found.wait(50);

  assert.deepEqual(bodies(found), Array.from({ length: 50 }, (_, number) => number));
});

test('no more comes than there is credit for, and a drain ends it', async (connection, name) => {
  const link = await sender(connection, queue(name));
  await sent(link, ...Array.from({ length: 5 }, (_, number) => ({ body: number })));
  const found = receiver(connection, queue(name), { credit_window: 0 });
  await next(found, 'receiver_open');
  found.add_credit(3);
  await found.wait(3);
  await after(QUIET);
  assert.deepEqual(bodies(found), [0, 1, 2]);

  const drained = next(found, 'receiver_drained');
  found.drain = true;
  found.add_credit(10);
  await drained;
  assert.deepEqual(bodies(found), [0, 1, 2, 3, 4]);
});

test('what is released comes again as if nothing had been', async (connection, name) => {
  const link = await sender(connection, queue(name));
  await sent(link, { body: 'a' });
  const found = receiver(connection, queue(name), { autoaccept: false });
  const [{ delivery }] = await found.wait(1);
  delivery.release({ delivery_failed: false, undeliverable_here: false });
  await found.wait(2);
  found.got[1].delivery.accept();

  assert.deepEqual(bodies(found), ['a', 'a']);
  assert.equal(found.got[1].message.delivery_count ?? 0, 0);
});

test('what has failed comes again and is counted', async (connection, name) => {
  const link = await sender(connection, queue(name));
  await sent(link, { body: 'a' });
  const found = receiver(connection, queue(name), { autoaccept: false });
  const [{ delivery }] = await found.wait(1);
  delivery.modified({ delivery_failed: true, undeliverable_here: false });
  await found.wait(2);
  found.got[1].delivery.accept();

  assert.equal(found.got[1].message.delivery_count, 1);
});

test('what is rejected does not come again', async (connection, name) => {
  const link = await sender(connection, queue(name));
  await sent(link, { body: 'bad' }, { body: 'good' });
  const found = receiver(connection, queue(name), { autoaccept: false });
  await found.wait(1);
  found.got[0].delivery.reject({ condition: 'amqp:decode-error', description: 'no' });
  await found.wait(2);
  found.got[1].delivery.accept();
  await after(QUIET);

  assert.deepEqual(bodies(found), ['bad', 'good']);
});

test('what was not settled when its connection went comes again', async (connection, name) => {
  const link = await sender(connection, queue(name));
  await sent(link, { body: 'a' });
  const other = connect();
  other.on('disconnected', () => {});
  await receiver(other, queue(name), { autoaccept: false }).wait(1);
  other.socket.destroy();
  const [{ message }] = await receiver(connection, queue(name)).wait(1);

  assert.equal(message.body, 'a');
  assert.equal(message.delivery_count, 1);
});

test('who drains without credit hears that there is nothing more', async (connection, name) => {
  const link = receiver(connection, queue(name), { credit_window: 0 });
  await next(link, 'receiver_open');
  link.drain_credit();
  await next(link, 'receiver_drained');

  await sent(await sender(connection, queue(name)), { body: 'a' });
  link.drain = false;
  link.add_credit(1);
  await link.wait(1);
  assert.deepEqual(bodies(link), ['a']);
});

test('a subscriber that was cut off gets what it has missed, once', async (connection, name) => {
  const subscribe = (own) => receiver(own, topic(name), { name: 'sub', autoaccept: false });
  const link = await sender(connection, topic(name));
  const first = connect({ container_id: name });
  first.on('disconnected', () => {});
  const before = subscribe(first);
  await next(before, 'receiver_open');
  await sent(link, { body: 'a' });
  await before.wait(1);
  first.socket.destroy();
  await sent(link, { body: 'b' });

  const second = connect({ container_id: name });
  const again = subscribe(second);
  await again.wait(2);
  await sent(link, { body: 'c' });
  await again.wait(3);
  assert.deepEqual(bodies(again), ['a', 'b', 'c']);
  second.close();
});

test('a filter chooses', async (connection, name) => {
  const link = await sender(connection, queue(name));
  const messages = ['red', 'blue', 'red'].map((colour, number) => ({
    body: number,
    application_properties: { colour },
  }));
  await sent(link, ...messages);
  const filter = rhea.filter.selector("colour = 'red'");
  const found = receiver(connection, { ...queue(name), filter });
  await found.wait(2);
  await after(QUIET);

  assert.deepEqual(bodies(found), [0, 2]);
});

test('a filter that is none is refused', async (connection, name) => {
  const filter = rhea.filter.selector('colour = = 1');
  const link = receiver(connection, { ...queue(name), filter });
  await next(link, 'receiver_error');

  assert.equal(link.error.condition, 'amqp:invalid-field');
});

test('a browser takes nothing', async (connection, name) => {
  const link = await sender(connection, queue(name));
  await sent(link, { body: 1 }, { body: 2 });
  const looking = receiver(connection, { ...queue(name), distribution_mode: 'copy' });
  await looking.wait(2);
  looking.close();
  const taking = receiver(connection, queue(name));
  await taking.wait(2);

  assert.deepEqual(bodies(taking), [1, 2]);
});

test('requests are answered at an address made for it', async (connection, name) => {
  const server = receiver(connection, queue(name));
  const relay = await sender(connection, {});
  server.on('message', ({ message }) =>
    relay.send({
      to: message.reply_to,
      correlation_id: message.message_id,
      body: message.body.toUpperCase(),
    }),
  );
  const answers = receiver(connection, { dynamic: true });
  await next(answers, 'receiver_open');
  const link = await sender(connection, queue(name));
  link.send({ message_id: 'q1', reply_to: answers.source.address, body: 'question' });
  const [{ message }] = await answers.wait(1);

  assert.equal(message.body, 'QUESTION');
  assert.equal(message.correlation_id, 'q1');
});

test('all subscribers of a topic get everything', async (connection, name) => {
  const links = [1, 2].map(() => receiver(connection, topic(name)));
  await Promise.all(links.map((link) => next(link, 'receiver_open')));
  const link = await sender(connection, topic(name));
  await sent(link, { body: 'a' }, { body: 'b' });

  for (const each of links) {
    await each.wait(2);
    assert.deepEqual(bodies(each), ['a', 'b']);
  }
});

test('a durable subscription keeps what comes meanwhile', async (connection, name) => {
  const source = { ...topic(name), durable: 2, expiry_policy: 'never' };
  const options = { name: 'kept' };
  const first = connect({ container_id: `rhea-durable-${run}` });
  await next(receiver(first, source, options), 'receiver_open');
  first.close();
  await next(first, 'connection_close');
  await sent(await sender(connection, topic(name)), { body: 'meanwhile' });
  const second = connect({ container_id: `rhea-durable-${run}` });
  const found = receiver(second, source, options);
  await found.wait(1);
  found.close();
  await next(found, 'receiver_close');
  second.close();

  assert.deepEqual(bodies(found), ['meanwhile']);
});

test('links of several sessions do not meet', async (connection, name) => {
  const sessions = [connection.create_session(), connection.create_session()];
  sessions.forEach((session) => session.begin());
  const links = sessions.map((session, number) => receiver(session, queue(`${name}_${number}`)));
  for (const number of [0, 1]) {
    await sent(await sender(sessions[1 - number], queue(`${name}_${number}`)), { body: number });
  }

  for (const number of [0, 1]) {
    await links[number].wait(1);
    assert.deepEqual(bodies(links[number]), [number]);
  }
});

test('a quiet connection is kept alive', async (_, name) => {
  const connection = connect({ idle_time_out: 1_000 });
  const link = await sender(connection, queue(name));
  await after(2_500);
  await sent(link, { body: 'still here' });
  const found = receiver(connection, queue(name));
  await found.wait(1);
  connection.close();

  assert.deepEqual(bodies(found), ['still here']);
});

/** Waits until somebody serves again: tests that begin before would all end at once. */
async function served() {
  lost = () => {};
  for (let tries = 0; tries < 100; tries += 1) {
    const probe = connect();
    try {
      await sender(probe, queue(`rhea_served_${run}`), {}, 1_000);
      return;
    } catch {
      await after(200);
    } finally {
      probe.close();
    }
  }
}

const labelled = tests.map(([name, body]) => [name.replaceAll(/[^\w]+/g, '_'), body]);
const run = Date.now().toString(36);
const wanted = process.argv.slice(3);
const chosen = labelled.filter(([label]) => !wanted.length || wanted.includes(label));
let failed = 0;
for (const [label, body] of chosen) {
  const ended = new Promise((_, failed) => {
    lost = () => failed(new Error('the connection ended'));
  });
  ended.catch(() => {});
  const connection = connect();
  try {
    const late = after(30_000).then(() => {
      throw new Error('not done in 30 s');
    });
    await Promise.race([body(connection, `rhea_${label}_${run}`), ended, late]);
  } catch (error) {
    failed += 1;
    if (error.message === 'the connection ended') await served();
    console.log(`FAILED ${label}: ${String(error.stack).replaceAll(/\s+/g, ' ').slice(0, 600)}`);
  }
  connection.close();
}
console.log(`RAN ${chosen.length} FAILED ${failed} IGNORED 0`);
process.exit(0);
