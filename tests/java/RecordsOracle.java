import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Utils;

/** Reads the batches in a file, prints what Kafka sees in them, and writes the same records as Kafka does. */
public final class RecordsOracle {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer input = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])));
        try (OutputStream output = Files.newOutputStream(Path.of(arguments[1]))) {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(input).batches()) {
                batch.ensureValid();
                System.out.println(String.format("batch %d %d %d %s %s %d %d %d %b %d", batch.baseOffset(),
                    batch.lastOffset(), batch.sizeInBytes(), batch.compressionType().name, batch.timestampType(),
                    batch.producerId(), batch.producerEpoch(), batch.baseSequence(), batch.isTransactional(),
                    batch.maxTimestamp()));
                output.write(copy(batch));
            }
        }
    }

    private static byte[] copy(RecordBatch batch) {
        ByteBuffer buffer = ByteBuffer.allocate(1024);
        Compression compression = Compression.of(batch.compressionType()).build();
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.MAGIC_VALUE_V2, compression,
            TimestampType.CREATE_TIME, batch.baseOffset());
        for (Record record : batch) {
            print(record);
            builder.append(record.timestamp(), record.key(), record.value(), record.headers());
        }
        ByteBuffer written = builder.build().buffer();
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        return bytes;
    }

    private static void print(Record record) {
        StringJoiner line = new StringJoiner(" ");
        line.add("record").add("" + record.offset()).add("" + record.timestamp());
        line.add(text(record.key())).add(text(record.value()));
        line.add(record.hasKey() ? "" + Utils.murmur2(Utils.toArray(record.key())) : "-");
        for (Header header : record.headers()) {
            line.add(text(ByteBuffer.wrap(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8))));
            line.add(text(header.value() == null ? null : ByteBuffer.wrap(header.value())));
        }
        System.out.println(line);
    }

    private static String text(ByteBuffer data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(Utils.toArray(data));
    }
}
