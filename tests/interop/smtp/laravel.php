<?php
// A mail by Symfony's Mailer, with which Laravel sends. The settings of `.env` reach it as Laravel's
// config/mail.php and MailManager give them: Debian has no Laravel that uses this library. Prints the
// mail's bytes, as base64.
require 'Symfony/Component/Mailer/autoload.php';

use Symfony\Component\Mailer\Transport\Dsn;
use Symfony\Component\Mailer\Transport\Smtp\EsmtpTransportFactory;
use Symfony\Component\Mime\Address;
use Symfony\Component\Mime\Email;

$recipe = <<<'ENV'
RECIPE
ENV;

preg_match_all('/^(\w+)=(.*)$/m', $recipe, $lines);
$env = array_combine($lines[1], $lines[2]);
assert($env['MAIL_MAILER'] === 'smtp');
$transport = (new EsmtpTransportFactory())->create(new Dsn(
    $env['MAIL_SCHEME'] ?? ($env['MAIL_PORT'] == 465 ? 'smtps' : 'smtp'),
    $env['MAIL_HOST'],
    $env['MAIL_USERNAME'],
    $env['MAIL_PASSWORD'],
    $env['MAIL_PORT'],
    ['local_domain' => 'localhost'],
));

$content = str_repeat(implode('', array_map('chr', range(0, 255))), 20);
$mail = (new Email())
    ->from(new Address($env['MAIL_FROM_ADDRESS'], 'Jürgen Groß'))
    ->to(new Address('bob@example.org', 'Bob'))
    ->cc('cy@example.org')
    ->bcc('hidden@example.org')
    ->subject('Grüße ✉')
    ->text("Grüße\n.\n..\nFrom here on\n")
    ->html('<p>Grüße</p>')
    ->attach($content, 'résumé.pdf', 'application/pdf');
$mail->getHeaders()->addTextHeader('X-SES-CONFIGURATION-SET', 'other');
echo base64_encode($transport->send($mail)->toString());
