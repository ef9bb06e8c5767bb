import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Spells distinguished names, and applies ssl.principal.mapping.rules to them. Each line of the input is `N` and a name as
 * DER, or `R`, rules and a name as text, all in hexadecimal; each of the output is what came of it, or an exception's class.
 */
public class TlsPrincipalsOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split(" ", -1);
            try {
                String found = fields[0].equals("N")
                    ? new X500Principal(HexFormat.of().parseHex(fields[1])).getName()
                    : SslPrincipalMapper.fromRules(text(fields[1])).getName(text(fields[2]));
                System.out.println("=" + HexFormat.of().formatHex(found.getBytes(StandardCharsets.UTF_8)));
            } catch (Exception exception) {
                System.out.println(exception.getClass().getSimpleName());
            }
        }
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }
}
