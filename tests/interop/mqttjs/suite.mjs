// An unmodified MQTT.js against a realm: node suite.mjs mqtt://host:port|ws://host:port/ws
// Says in lines of one form what has become of each test.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import mqtt from 'mqtt';

const url = process.argv[2];
const run = `js-${url.split(':')[0]}`;
const PATIENCE = 20_000;
const tests = [];
const test = (name, body) => tests.push([name, body]);

/** A client that is let in, and what it gets: `wait(count)` for so many messages. */
async function client(name, options = {}) {
  const made = mqtt.connect(url, {
    clientId: `${run}-${name}`,
    protocolVersion: 5,
    reconnectPeriod: 0,
    ...options,
  });
  const got = [];
  made.on('message', (topic, payload, packet) => {
    got.push({ topic, text: payload.toString(), packet });
    made.emit('got');
  });
  made.wait = async (count) => {
    while (got.length < count) await once(made, 'got', { signal: AbortSignal.timeout(PATIENCE) });
    return got;
  };
  const [connack] = await once(made, 'connect', { signal: AbortSignal.timeout(PATIENCE) });
  made.connack = connack;
  return made;
}

for (const version of [4, 5]) {
  test(`each_qos_${version}`, async () => {
    const one = await client(`qos-${version}`, { protocolVersion: version });
    const topic = `${run}/qos/${version}`;
    const [granted] = await one.subscribeAsync(`${run}/qos/+`, { qos: 2 });
    assert.equal(granted.qos, 2);
    for (const qos of [0, 1, 2]) await one.publishAsync(topic, `${qos}`, { qos });
    const got = await one.wait(3);
    assert.deepEqual(
      got.map(({ text, packet }) => [text, packet.qos]).sort(),
      [['0', 0], ['1', 1], ['2', 2]],
    );
    await one.endAsync();
  });
}

test('retained', async () => {
  const one = await client('device');
  await one.publishAsync(`${run}/state`, 'off', { qos: 1, retain: true });
  await one.publishAsync(`${run}/state`, 'on', { qos: 1, retain: true });
  await one.endAsync();
  const late = await client('late');
  await late.subscribeAsync(`${run}/state`, { qos: 1 });
  const [{ text, packet }] = await late.wait(1);
  assert.deepEqual([text, packet.retain], ['on', true]);
  await late.endAsync();
});

test('session', async () => {
  const lasting = { clean: false, properties: { sessionExpiryInterval: 600 } };
  const sleeper = await client('sleeper', lasting);
  assert.equal(sleeper.connack.sessionPresent, false);
  await sleeper.subscribeAsync(`${run}/jobs/#`, { qos: 2 });
  await sleeper.endAsync();
  const boss = await client('boss');
  for (let n = 0; n < 20; n += 1) await boss.publishAsync(`${run}/jobs/1`, `${n}`, { qos: 2 });
  await boss.endAsync();
  const again = await client('sleeper', lasting);
  assert.equal(again.connack.sessionPresent, true);
  const got = await again.wait(20);
  assert.deepEqual(got.map(({ text }) => text), Array.from({ length: 20 }, (_, n) => `${n}`));
  await again.endAsync();
});

test('shared', async () => {
  const members = [await client('member-1'), await client('member-2')];
  for (const each of members) await each.subscribeAsync(`$share/crew/${run}/work`, { qos: 1 });
  const boss = await client('boss');
  for (let n = 0; n < 20; n += 1) await boss.publishAsync(`${run}/work`, `${n}`, { qos: 1 });
  const all = [];
  const done = new Promise((found) => {
    for (const each of members)
      each.wait(0).then((got) => {
        const look = () => all.push(got.at(-1).text) === 20 && found();
        got.forEach(({ text }) => all.push(text));
        if (all.length === 20) found();
        each.on('got', look);
      });
  });
  await done;
  assert.deepEqual(all.map(Number).sort((a, b) => a - b), Array.from({ length: 20 }, (_, n) => n));
  for (const each of [...members, boss]) await each.endAsync();
});

test('will', async () => {
  const watcher = await client('watcher');
  await watcher.subscribeAsync(`${run}/gone`, { qos: 1 });
  const lost = await client('lost', { will: { topic: `${run}/gone`, payload: 'bye', qos: 1 } });
  lost.stream.destroy();
  const [{ text }] = await watcher.wait(1);
  assert.equal(text, 'bye');
  await watcher.endAsync();
});

test('request', async () => {
  const server = await client('server');
  await server.subscribeAsync(`${run}/double`, { qos: 1 });
  server.on('message', (_, payload, { properties }) =>
    server.publish(properties.responseTopic, `${2 * Number(payload)}`, {
      qos: 1,
      properties: { correlationData: properties.correlationData },
    }),
  );
  const asker = await client('asker', { properties: { requestResponseInformation: true } });
  const prefix = asker.connack.properties.responseInformation;
  assert.equal(prefix, `reply/${run}-asker/`);
  await asker.subscribeAsync(`${prefix}#`, { qos: 1 });
  const properties = {
    responseTopic: `${prefix}a`,
    correlationData: Buffer.from([0, 255]),
    userProperties: { unit: 'C' },
  };
  await asker.publishAsync(`${run}/double`, '21', { qos: 1, properties });
  const [{ text, packet }] = await asker.wait(1);
  assert.equal(text, '42');
  assert.deepEqual([...packet.properties.correlationData], [0, 255]);
  const [asked] = await server.wait(1);
  assert.equal(asked.packet.properties.userProperties.unit, 'C');
  for (const each of [server, asker]) await each.endAsync();
});

test('refused', async () => {
  const late = new Promise((_, failed) => setTimeout(() => failed(new Error('late')), PATIENCE).unref());
  const stranger = mqtt.connect(url, {
    clientId: `${run}-stranger`,
    protocolVersion: 5,
    reconnectPeriod: 0,
    properties: { authenticationMethod: 'GUESS', authenticationData: Buffer.from('x') },
  });
  const refused = await Promise.race([once(stranger, 'error').then(([error]) => error), late]);
  assert.equal(refused.code, 0x8c);
  stranger.end(true);
});

let failed = 0;
for (const [name, body] of tests) {
  try {
    await body();
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}: ${String(error.stack ?? error).split('\n').slice(0, 4).join(' ')}`);
  }
}
console.log(`RAN ${tests.length} FAILED ${failed} IGNORED 0`);
process.exit(failed ? 1 : 0);
