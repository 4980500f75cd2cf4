// A mail as Supabase's service for accounts sends it by these settings: docker/docker-compose.yml of
// supabase/supabase gives them to it with the prefix GOTRUE_, and internal/mailer/mailmeclient of
// supabase/auth sends with gomail.v2. Debian does not have that library, so this program uses mail.v2, which
// continues it.
package main

import (
	"bufio"
	"log"
	"os"
	"strconv"
	"strings"

	gomail "gopkg.in/mail.v2"
)

func main() {
	settings := map[string]string{
		"SMTP_HOST": "", "SMTP_PORT": "", "SMTP_USER": "", "SMTP_PASS": "",
		"SMTP_ADMIN_EMAIL": "", "SMTP_SENDER_NAME": "",
	}
	file, err := os.Open(os.Args[1])
	check(err)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		if _, isKnown := settings[name]; isKnown {
			settings[name] = value
		} else if !strings.HasPrefix(name, "#") {
			log.Fatalf("unknown setting %q", name)
		}
	}
	check(lines.Err())
	port, err := strconv.Atoi(settings["SMTP_PORT"])
	check(err)

	dialer := gomail.NewDialer(settings["SMTP_HOST"], port, settings["SMTP_USER"], settings["SMTP_PASS"])
	// The library uses TLS from the first byte if the port is 465. The test has another port.
	dialer.SSL = os.Getenv("PORT_OF_PAGE") == "465"
	message := gomail.NewMessage()
	from := message.FormatAddress(settings["SMTP_ADMIN_EMAIL"], settings["SMTP_SENDER_NAME"])
	message.SetHeader("From", from)
	message.SetHeader("To", "ada@example.net")
	message.SetHeader("Subject", "Hello")
	message.SetBody("text/html", "<p>Hi</p>")
	check(dialer.DialAndSend(message))
}
