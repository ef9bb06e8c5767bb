import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.StringJoiner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;

/**
 * What Kafka 3.9, the last release that knows message sets, makes of the buffers in a folder: prints what it reads,
 * writes the same records itself, and converts them down as for a fetch and up as for its log.
 *
 * A file's name is its number, a dash, and the offset that a fetch asks for.
 */
public final class MessageFormatsOracle {
    public static void main(String[] arguments) throws Exception {
        Path[] files;
        try (var found = Files.list(Path.of(arguments[0]))) {
            files = found.toArray(Path[]::new);
        }
        for (Path file : files) {
            String[] name = file.getFileName().toString().split("-");
            Path results = Path.of(arguments[1], name[0]);
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file)));
            Files.writeString(results.resolveSibling(name[0] + ".txt"), printed(records));
            write(results, "copy", copy(records));
            boolean zstd = false;
            byte greatest = 0;
            for (RecordBatch batch : records.batches()) {
                zstd |= batch.compressionType() == CompressionType.ZSTD;
                greatest = (byte) Math.max(greatest, batch.magic());
            }
            for (byte magic = 0; magic < 2 && !zstd; magic++)
                write(results, "down" + magic,
                    records.downConvert(magic, Long.parseLong(name[1]), Time.SYSTEM).records().buffer());
            for (byte magic = 1; magic <= 2 && greatest < 2 && name.length == 2; magic++)
                write(results, "up" + magic, upConverted(records, magic));
        }
    }

    private static ByteBuffer upConverted(MemoryRecords records, byte magic) {
        RecordBatch first = records.batches().iterator().next();
        LogValidator validator = new LogValidator(records, new TopicPartition("topic", 0), Time.SYSTEM,
            first.compressionType(), Compression.of(first.compressionType()).build(), false, magic,
            TimestampType.CREATE_TIME, Long.MAX_VALUE, Long.MAX_VALUE, -1, AppendOrigin.CLIENT,
            MetadataVersion.latestProduction());
        return validator.validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(0), new NoMetrics(),
            BufferSupplier.NO_CACHING).validatedRecords.buffer();
    }

    private static ByteBuffer copy(MemoryRecords records) throws IOException {
        ByteArrayOutputStream copied = new ByteArrayOutputStream();
        for (MutableRecordBatch batch : records.batches()) {
            if (batch.isControlBatch())
                continue;
            boolean appended = batch.timestampType() == TimestampType.LOG_APPEND_TIME;
            MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1024), batch.magic(),
                Compression.of(batch.compressionType()).build(), batch.timestampType(), batch.baseOffset(),
                appended ? batch.maxTimestamp() : RecordBatch.NO_TIMESTAMP);
            for (Record record : batch)
                builder.appendWithOffset(record.offset(), record.timestamp(), record.key(), record.value(),
                    record.headers());
            copied.write(Utils.toArray(builder.build().buffer()));
        }
        return ByteBuffer.wrap(copied.toByteArray());
    }

    private static String printed(MemoryRecords records) {
        StringJoiner lines = new StringJoiner("\n");
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            lines.add(String.format("batch %d %d %d %d %s %s", batch.magic(), batch.baseOffset(), batch.lastOffset(),
                batch.sizeInBytes(), batch.compressionType().name, batch.timestampType()));
            for (Record record : batch) {
                record.ensureValid();
                lines.add(String.format("record %d %d %s %s", record.offset(), record.timestamp(), text(record.key()),
                    text(record.value())));
            }
        }
        return lines.toString();
    }

    private static void write(Path results, String what, ByteBuffer data) throws IOException {
        Files.write(results.resolveSibling(results.getFileName() + "." + what), Utils.toArray(data));
    }

    private static String text(ByteBuffer data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(Utils.toArray(data));
    }

    private static final class NoMetrics implements LogValidator.MetricsRecorder {
        public void recordInvalidMagic() { }

        public void recordInvalidOffset() { }

        public void recordInvalidSequence() { }

        public void recordInvalidChecksums() { }

        public void recordNoKeyCompactedTopic() { }
    }
}
