// A mail by the library that Spring sends with, which takes the properties as Spring Boot gives them
// to it. Prints the mail's bytes, as base64.
import java.io.ByteArrayOutputStream;
import java.io.StringReader;
import java.util.Base64;
import java.util.Properties;
import org.springframework.core.io.ByteArrayResource;
import org.springframework.mail.javamail.JavaMailSenderImpl;
import org.springframework.mail.javamail.MimeMessageHelper;
import org.springframework.util.PropertyPlaceholderHelper;

class Mail {
    static final String PROPERTIES = """
RECIPE
""";

    public static void main(String[] arguments) throws Exception {
        var properties = new Properties();
        properties.load(new StringReader(
            new PropertyPlaceholderHelper("${", "}").replacePlaceholders(PROPERTIES, System::getenv)));
        var sender = new JavaMailSenderImpl();
        sender.setHost(properties.getProperty("spring.mail.host"));
        sender.setPort(Integer.parseInt(properties.getProperty("spring.mail.port")));
        sender.setUsername(properties.getProperty("spring.mail.username"));
        sender.setPassword(properties.getProperty("spring.mail.password"));
        var more = "spring.mail.properties.";
        for (var name : properties.stringPropertyNames()) {
            if (name.startsWith(more)) {
                var value = properties.getProperty(name);
                sender.getJavaMailProperties().setProperty(name.substring(more.length()), value);
            }
        }

        var content = new byte[256 * 20];
        for (var n = 0; n < content.length; n++) {
            content[n] = (byte) n;
        }
        var message = sender.createMimeMessage();
        var mail = new MimeMessageHelper(message, true, "UTF-8");
        mail.setFrom("orders@example.com", "Jürgen Groß");
        mail.setTo("Bob <bob@example.org>");
        mail.setCc("cy@example.org");
        mail.setBcc("hidden@example.org");
        mail.setSubject("Grüße ✉");
        mail.setText("Grüße\n.\n..\nFrom here on\n", "<p>Grüße</p>");
        mail.addAttachment("résumé.pdf", new ByteArrayResource(content), "application/pdf");
        message.setHeader("X-SES-CONFIGURATION-SET", "other");
        sender.send(message);
        var bytes = new ByteArrayOutputStream();
        message.writeTo(bytes);
        System.out.print(Base64.getEncoder().encodeToString(bytes.toByteArray()));
    }
}
