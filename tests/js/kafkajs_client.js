// kafkajs does what applications do, and prints what it saw as one line of JSON.
// Arguments: the broker's address, the topic, and the beginning of the names of groups.

const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [bootstrap, topic, group] = process.argv.slice(2);
const COUNT = 300;
const kafka = new Kafka({ clientId: "strangers", brokers: [bootstrap], logLevel: logLevel.ERROR });

function message(number) {
  return { key: `key ${number}`, value: `value ${number}`, partition: number % 3, headers: { n: `${number}` } };
}

async function produce() {
  const numbers = [...Array(COUNT).keys()];
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  await producer.send({ topic, compression: CompressionTypes.GZIP, messages: numbers.map(message) });
  await producer.disconnect();
  const careful = kafka.producer({ transactionalId: group, idempotent: true, maxInFlightRequests: 1 });
  await careful.connect();
  for (const commits of [false, true]) {
    const transaction = await careful.transaction();
    await transaction.send({ topic, messages: [0, 1, 2].map((number) => message(COUNT + number)) });
    if (commits) await transaction.sendOffsets({ consumerGroupId: `${group}-sent`, topics: [
      { topic, partitions: [{ partition: 0, offset: "7" }] }] });
    await (commits ? transaction.commit() : transaction.abort());
  }
  await careful.disconnect();
}

// Two members read everything, and have partitions both.
async function consume(count) {
  const seen = [[], []];
  const members = [0, 1].map(() => kafka.consumer({ groupId: group, heartbeatInterval: 300, rebalanceTimeout: 5000,
    maxWaitTimeInMs: 100 }));
  const assigned = [new Set(), new Set()];
  await Promise.all(members.map(async (member, index) => {
    member.on(member.events.GROUP_JOIN, (event) => {
      assigned[index] = new Set(event.payload.memberAssignment[topic] || []);
    });
    await member.connect();
    await member.subscribe({ topics: [topic], fromBeginning: true });
    await member.run({ eachMessage: async ({ partition, message: found }) => {
      seen[index].push([partition, found.offset, `${found.key}`, `${found.value}`, `${found.headers.n}`]);
    } });
  }));
  const all = () => new Set([...seen[0], ...seen[1]].map((row) => row.slice(0, 2).join(":"))).size;
  const shared = () => assigned.every((each) => each.size > 0) && assigned[0].size + assigned[1].size === 3;
  while (all() < count || !shared()) await new Promise((resolve) => setTimeout(resolve, 50));
  await Promise.all(members.map((member) => member.disconnect()));
  const unique = new Map([...seen[0], ...seen[1]].map((row) => [row.slice(0, 2).join(":"), row]));
  return [...unique.values()];
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 3, configEntries: [
    { name: "retention.ms", value: "3600000" }] }] });
  await produce();
  const rows = await consume(COUNT + 3);
  const offsets = async (name) => (await admin.fetchOffsets({ groupId: name, topics: [topic] }))[0].partitions
    .map(({ partition, offset }) => [partition, offset]).sort();
  const settings = await admin.describeConfigs({ resources: [{ type: 2, name: topic, configNames: ["retention.ms"] }] });
  const told = {
    rows,
    committed: await offsets(group),
    sent: await offsets(`${group}-sent`),
    ends: (await admin.fetchTopicOffsets(topic)).map(({ partition, low, high }) => [partition, low, high]).sort(),
    retention: settings.resources[0].configEntries[0].configValue,
    groups: (await admin.describeGroups([group])).groups.map(({ state, protocolType }) => [state, protocolType]),
    nodes: (await admin.describeCluster()).brokers.length,
  };
  await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: "5" }] });
  told.reset = await offsets(group);
  await admin.deleteGroups([group]);
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: "10" }] });
  told.after = (await admin.fetchTopicOffsets(topic)).map(({ partition, low }) => [partition, low]).sort();
  await admin.deleteTopics({ topics: [topic] });
  told.gone = !(await admin.listTopics()).includes(topic);
  await admin.disconnect();
  console.log(JSON.stringify(told));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
