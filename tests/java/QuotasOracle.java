import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.server.quota.QuotaUtils;

/**
 * Measures use against quotas. Each line of the input is `N kind samples seconds quota`, where kind is `rate` or `tokens`, for
 * a new measure; `R time value`, for something that is recorded; or `B quota`, for another quota. Times are in milliseconds. Of
 * each record the output has how long it is to be throttled: as ClientQuotaManager does it, and ControllerMutationQuotaManager.
 */
public class QuotasOracle {
    private static final Metrics METRICS = new Metrics();
    private static int made = 0;
    private static Sensor sensor;
    private static MetricName name;
    private static int samples;
    private static int seconds;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder told = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split(" ");
            switch (fields[0]) {
                case "N" -> {
                    samples = Integer.parseInt(fields[2]);
                    seconds = Integer.parseInt(fields[3]);
                    sensor = METRICS.sensor("s" + made);
                    name = METRICS.metricName("m" + made++, "quotas");
                    MetricConfig config = config(Double.parseDouble(fields[4]));
                    sensor.add(name, fields[1].equals("rate") ? new Rate() : new TokenBucket(), config);
                }
                case "B" -> METRICS.metrics().get(name).config(config(Double.parseDouble(fields[1])));
                default -> told.append(recorded(Long.parseLong(fields[1]), Double.parseDouble(fields[2]))).append('\n');
            }
        }
        System.out.print(told);
    }

    private static MetricConfig config(double quota) {
        return new MetricConfig().samples(samples).timeWindow(seconds, TimeUnit.SECONDS).quota(new Quota(quota, true));
    }

    private static long recorded(long time, double value) {
        try {
            sensor.record(value, time, true);
            return 0;
        } catch (QuotaViolationException violation) {
            KafkaMetric metric = violation.metric();
            if (metric.measurable() instanceof TokenBucket) {
                return Math.round(-violation.value() / violation.bound() * 1000);
            }
            return QuotaUtils.throttleTime(violation, time);
        }
    }
}
