// Prints what the tests of settings and serializers compare with: the settings of the three clients, one per line as
// client, name, type, default and validator with tabs between; then bytes that the serializers make of some values.

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.serialization.*;

public class SettingsOracle {
    static void settings(String client, ConfigDef definition) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            String value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE
                ? "<required>" : ConfigDef.convertToString(key.defaultValue, key.type);
            System.out.println(String.join("\t", "setting", client, key.name, key.type.toString(),
                value == null ? "<null>" : value, String.valueOf(key.validator)));
        }
    }

    static <T> void bytes(String name, Serializer<T> serializer, T value) {
        System.out.println(String.join("\t", "bytes", name, String.valueOf(value),
            HexFormat.of().formatHex(serializer.serialize("topic", value))));
    }

    public static void main(String[] arguments) {
        settings("producer", ProducerConfig.configDef());
        settings("consumer", ConsumerConfig.configDef());
        settings("admin", AdminClientConfig.configDef());
        for (int value : new int[] {0, 1, -1, 123456789, Integer.MIN_VALUE, Integer.MAX_VALUE}) {
            bytes("integer", new IntegerSerializer(), value);
            bytes("long", new LongSerializer(), value * 4294967297L);
            bytes("short", new ShortSerializer(), (short) value);
            bytes("float", new FloatSerializer(), value / 4f);
            bytes("double", new DoubleSerializer(), value / 4d);
        }
        bytes("boolean", new BooleanSerializer(), true);
        bytes("boolean", new BooleanSerializer(), false);
        bytes("uuid", new UUIDSerializer(), UUID.fromString("00112233-4455-6677-8899-aabbccddeeff"));
        bytes("string", new StringSerializer(), "plain");
    }
}
