package bench;

import java.io.File;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.BinaryRowWriter;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileSource;
import org.apache.paimon.manifest.ManifestCommittable;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.stats.SimpleStats;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.types.DataTypes;

/** Paimon tables with a long history, whose data files hold ten bytes each; and Paimon's own tools, to measure against. */
public class LongPaimon {
  private static final byte[] CONTENT = "ten bytes.".getBytes();
  private static final int PARTITIONS = 50;

  public FileStoreTable create(String warehouse, String name) throws Exception {
    Options options = new Options();
    options.set("warehouse", warehouse);
    options.set("cache-enabled", "false");
    Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
    catalog.createDatabase("db", true);
    catalog.dropTable(Identifier.create("db", name), true);
    Schema.Builder schema = Schema.newBuilder();
    schema.column("id", DataTypes.BIGINT());
    schema.column("dt", DataTypes.STRING());
    schema.partitionKeys(Arrays.asList(new String[] {"dt"}));
    schema.option("bucket", "-1");
    catalog.createTable(Identifier.create("db", name), schema.build(), false);
    return (FileStoreTable) catalog.getTable(Identifier.create("db", name));
  }

  public FileStoreTable load(String warehouse, String name) throws Exception {
    Options options = new Options();
    options.set("warehouse", warehouse);
    options.set("cache-enabled", "false");
    Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
    return (FileStoreTable) catalog.getTable(Identifier.create("db", name));
  }

  /** So many commits of so many files each; where asked, every eleventh commit makes the ten files before it one. */
  public void append(FileStoreTable table, int commits, int files, int start, boolean compact) throws Exception {
    Map writeOnly = Collections.singletonMap("write-only", "true");
    FileStoreTable copy = (FileStoreTable) table.copy(writeOnly);
    List small = new ArrayList();
    for (int number = start; number < start + commits; number++) {
      ManifestCommittable committable = new ManifestCommittable(Long.MAX_VALUE);
      if (compact && small.size() == 10) {
        DataFileMeta merged = file(table, 0, FileSource.COMPACT);
        CompactIncrement increment =
            new CompactIncrement(small, Collections.singletonList(merged), Collections.emptyList());
        committable.addFileCommittable(
            new CommitMessageImpl(partition(0), 0, Integer.valueOf(-1), DataIncrement.emptyIncrement(), increment));
        small = new ArrayList();
      } else {
        for (int each = 0; each < files; each++) {
          int day = compact ? 0 : (number * files + each) % PARTITIONS;
          DataFileMeta added = file(table, day, FileSource.APPEND);
          small.add(added);
          DataIncrement increment =
              new DataIncrement(
                  Collections.singletonList(added), Collections.emptyList(), Collections.emptyList());
          committable.addFileCommittable(
              new CommitMessageImpl(
                  partition(day), 0, Integer.valueOf(-1), increment, CompactIncrement.emptyIncrement()));
        }
      }
      TableCommitImpl commit = copy.newCommit("bench-" + number);
      commit.commit(committable);
      commit.close();
    }
  }

  private static BinaryRow partition(int day) {
    BinaryRow row = new BinaryRow(1);
    BinaryRowWriter writer = new BinaryRowWriter(row);
    writer.writeString(0, BinaryString.fromString("day-" + day));
    writer.complete();
    return row;
  }

  private static DataFileMeta file(FileStoreTable table, int day, FileSource source) throws Exception {
    String name = "data-" + UUID.randomUUID() + "-0.parquet";
    File folder = new File(table.location().toUri().getPath(), "dt=day-" + day + "/bucket-0");
    folder.mkdirs();
    Files.write(new File(folder, name).toPath(), CONTENT);
    return DataFileMeta.forAppend(
        name, CONTENT.length, 1, SimpleStats.EMPTY_STATS, 0, 0, 0, Collections.emptyList(), null, source, null, null,
        null, null);
  }

  public String ownOrphans(FileStoreTable table, long olderThanMillis) throws Exception {
    List found = new LocalOrphanFilesClean(table, olderThanMillis, true).clean().getDeletedFilesPath();
    StringBuilder told = new StringBuilder();
    for (int each = 0; each < found.size(); each++) {
      told.append(found.get(each).toString()).append('\n');
    }
    return told.toString();
  }

  public int ownExpire(FileStoreTable table, int keep) {
    ExpireConfig config =
        ExpireConfig.builder()
            .snapshotRetainMax(keep)
            .snapshotRetainMin(keep)
            .snapshotTimeRetain(java.time.Duration.ofMillis(1))
            .snapshotMaxDeletes(1000000)
            .build();
    return table.newExpireSnapshots().config(config).expire();
  }
}
